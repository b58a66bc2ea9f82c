"""Plays :mod:`benchmarks.circle`'s modes: whole runs of the demonstration, without its evaluations."""

import functools
from collections.abc import Callable
from typing import Any

import msgspec
from rich.console import Console

from benchmarks import circle as comparing
from benchmarks.decoupling_run import ModeRunner
from benchmarks.modes import Mode
from dart_streams.config import Config
from dart_streams.history import run_folder as folder
from dart_streams.launch import processes
from dart_streams.launch.session import Finish, Session
from dart_streams.views.metrics import USAGE_FILE, usages


def player(minutes: float, tell: Callable[[str], None]) -> ModeRunner:
    """Return who lets a mode live for so many minutes of the clock."""
    return ModeRunner(minutes, tell, bounded=bounded, wired=session_of)


def bounded(config: Config, minutes: float) -> Config:
    """Return a configuration that trains for so long, and does nothing else."""
    run = msgspec.structs.replace(config.run, minutes=minutes, demonstrate=False)
    return msgspec.structs.replace(config, run=run, evaluation=msgspec.structs.replace(config.evaluation, episodes=0))


def session_of(made: folder.RunFolder, console: Console, finish: Finish) -> Session:
    """Return the session of a run with its own processes; the tiny policy is built first if it is not there yet."""
    found = processes.programs()
    run_processes = processes.processes_of(made.config(), made.config_file, found)
    find_policy = functools.partial(processes.find_policy, made, found=found)
    return Session(made, run_processes, finish, console, find_policy=find_policy)


def costs(played: ModeRunner) -> dict[Mode, dict[str, Any]]:
    """Return what a step cost in the last run of each mode."""
    found = {}
    for mode, made in played.folders.items():
        phase = made.journal().phase("circle")
        assert phase is not None and phase.ended_ms is not None
        samples = usages(made.path / "metrics" / USAGE_FILE)
        steps = len(played.newest[mode].actions)
        found[mode] = comparing.costs(samples, phase.started_ms, phase.ended_ms, steps)
    return found
