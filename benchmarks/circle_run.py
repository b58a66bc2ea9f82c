"""Plays :mod:`benchmarks.circle`'s modes: whole runs of the demonstration, without its evaluations."""

import functools
from collections.abc import Callable
from typing import Any

import msgspec
from rich.console import Console

from benchmarks import circle as comparing
from benchmarks import decoupling_run
from benchmarks.decoupling_run import ModeRunner
from benchmarks.modes import Mode
from dart_streams.config import Config
from dart_streams.console.launch import processes
from dart_streams.console.launch.session import Finish, Session
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.process_usage import USAGE_FILE, read_usage


class CircleRunner(ModeRunner):
    """Lets a mode live for N minutes of the clock, with the processes of its configuration."""

    def __init__(self, minutes: float, tell: Callable[[str], None]) -> None:
        super().__init__(minutes, tell, bounded=limit_run, wired=session_of)


def limit_run(config: Config, minutes: float) -> Config:
    """Return a configuration that trains for so long, and does nothing else."""
    if config.workload is not None:
        return decoupling_run.clock_config(config, minutes)
    run = msgspec.structs.replace(config.run, minutes=minutes, demonstrate=False)
    return msgspec.structs.replace(config, run=run, evaluation=msgspec.structs.replace(config.evaluation, episodes=0))


def session_of(made: folder.RunFolder, console: Console, finish: Finish) -> Session:
    """Return the session of a run with its own processes; the tiny policy is built first if it is not there yet.

    A workload has the times of environment and model, and a stand-in for the trainer.
    """
    if made.config().workload is not None:
        return decoupling_run.session_of(made, console, finish)
    found = processes.find_programs()
    run_processes = processes.processes_of(made.config(), made.config_file, found)
    find_policy = functools.partial(processes.find_policy, made, found=found)
    return Session(made, run_processes, finish, console, find_policy=find_policy)


def measure_costs(played: CircleRunner) -> dict[Mode, dict[str, Any]]:
    """Return what a step cost in the last run of each mode, once it was warm."""
    found = {}
    for mode, made in played.folders.items():
        phase = made.journal().phase("circle")
        assert phase is not None and phase.ended_ms is not None
        start_ms, end_ms = phase.started_ms + round(1000 * comparing.WARM_S), phase.ended_ms
        steps = sum(at_s >= comparing.WARM_S for at_s in played.newest[mode].actions)
        samples = read_usage(made.path / "metrics" / USAGE_FILE)
        found[mode] = comparing.step_costs(samples, start_ms, end_ms, steps)
    return found
