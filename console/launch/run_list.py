"""The runs of a state folder, as a list; and the end of a run that another terminal started."""

import signal
import time
from pathlib import Path

import msgspec

from console.launch import process_registry
from console.launch.process_registry import ProcessRegistry
from console.runs.provenance import MachineDescription
from console.runs.run_folder import PhaseLog, RunFolder, all_runs
from dart_streams.config.text import MALFORMED
from dart_streams.deadline import Deadline
from dart_streams.errors import UserError

REGISTRY = "processes.json"
POLL_S = 0.2
REVISION = 9
"""Characters of a revision in a list."""


class Figures(msgspec.Struct, frozen=True):
    """The part of report.json that a list shows."""

    episodes: int | None = None
    train_steps: int | None = None
    success_before: float | None = None
    success_after: float | None = None


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a run that its journal and report have, here or in a bundle; null and empty where they lack one.

    Success is on held-out tasks. ``machine`` and ``version`` are of its newest start, empty in journals of before.
    """

    started_ms: int | None
    minutes: float | None
    episodes: int | None
    steps: int | None
    success_before: float | None
    success_after: float | None
    machine: str
    version: str


class RunRow(RunFacts, frozen=True, kw_only=True):
    """A run of a state folder. ``state`` is running, complete, or the phase in which it stopped."""

    run: str
    state: str
    recipe: str
    mb: int


def list_runs(state: Path) -> list[RunRow]:
    """Return a state folder's runs, oldest first."""
    return [row_of(folder) for folder in all_runs(state / "runs")]


def row_of(folder: RunFolder) -> RunRow:
    """Return the row of a run; figures are those of its report, null before it has one."""
    journal = folder.journal()
    try:
        recipes = ", ".join(folder.config().recipe)
    except UserError:
        recipes = "?"
    report = folder.path / "report.json"
    facts = facts_of(journal, report.read_bytes() if report.is_file() else b"")
    return RunRow(
        run=folder.id,
        state="running" if is_running(folder) else state_of(journal),
        recipe=recipes,
        mb=round(folder_bytes(folder.path) / 1e6),
        **msgspec.structs.asdict(facts),
    )


def state_of(journal: PhaseLog) -> str:
    """Return the state of a run that is not under way."""
    phases = journal.phases
    return journal.outcome if journal.outcome == "complete" or not phases else f"stopped: {phases[-1].name}"


def facts_of(journal: PhaseLog, report: bytes) -> RunFacts:
    """Return the facts of a run by its journal and its report, which may be empty."""
    try:
        figures = msgspec.json.decode(report, type=Figures)
    except MALFORMED:
        figures = Figures()
    phases = journal.phases
    ended_ms = max((phase.ended_ms or phase.started_ms for phase in phases), default=None)
    start = journal.starts[-1] if journal.starts else None
    changed = "+" if start and start.revision[REVISION:].endswith("+") else ""
    return RunFacts(
        started_ms=phases[0].started_ms if phases else None,
        minutes=round((ended_ms - phases[0].started_ms) / 60_000, 1) if ended_ms else None,
        episodes=figures.episodes,
        steps=figures.train_steps,
        success_before=figures.success_before,
        success_after=figures.success_after,
        machine=describe_machine(start.machine) if start else "",
        version=f"{start.version} {start.revision[:REVISION]}{changed}".strip() if start else "",
    )


def describe_machine(machine: MachineDescription) -> str:
    """Return a machine in one line."""
    gpus = f", {'; '.join(machine.gpus)}" if machine.gpus else ""
    return f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB{gpus}"


def registry_of(folder: RunFolder) -> ProcessRegistry | None:
    """Return a run's registry of processes; None if it has none."""
    return process_registry.read(folder.path / REGISTRY)


def is_running(folder: RunFolder) -> bool:
    """Return whether the supervisor of a run is alive."""
    registry = registry_of(folder)
    return registry is not None and process_registry.lives(folder.path, registry)


def folder_bytes(path: Path) -> int:
    """Return the bytes of all files in a folder; those that vanish meanwhile count nothing."""
    total = 0
    for file in path.rglob("*"):
        try:
            total += 0 if file.is_symlink() or not file.is_file() else file.stat().st_size
        except OSError:
            continue
    return total


def stop_run(folder: RunFolder, wait_s: float) -> None:
    """End a running run as Ctrl-C does in its terminal, and wait for its end.

    Raises UserError if it does not run, runs in another container or does not end in time.
    """
    registry = registry_of(folder)
    process = registry.supervisor.process() if registry else None
    if process is None:
        where = "in another container" if is_running(folder) else "no longer"
        raise UserError(f"run {folder.id!r} runs {where}: there is nothing to stop here")
    process.send_signal(signal.SIGINT)
    end = Deadline(wait_s)
    while is_running(folder):
        if end.expired:
            raise UserError(
                f"run {folder.id!r} has not ended after {wait_s:g} s: it drains its episodes (run.drain_s). Wait, or "
                "look at its log with `dart-streams runs logs`"
            )
        time.sleep(POLL_S)
