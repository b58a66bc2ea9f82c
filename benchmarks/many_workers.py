"""A run over many workers of each kind: ``dart-streams bench workers``.

Services and processes are real; model and desktops take their times from a workload. Each kind has N workers: they
share the slots, and each has a partition of the topics. At the end the store is compared with the log.
"""

import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from benchmarks import modes
from benchmarks.decoupling_run import clock_config, session_of
from benchmarks.slots import GROUP, slot_metrics, step_s
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets
from dart_streams.config.files import with_partitions
from dart_streams.console.cli.store import compare_tables, store_session
from dart_streams.console.launch.services import jars
from dart_streams.console.launch.session import Finish, Session, run_session
from dart_streams.console.launch.supervisor import ProcessSpec
from dart_streams.console.launch.training_run import TrainingRun
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.metrics_reader import MetricsReader
from dart_streams.console.runs.process_usage import USAGE_FILE, read_usage
from dart_streams.console.views import report
from dart_streams.errors import UserError
from dart_streams.telemetry import names

SETTLE_S = 15.0
"""Time that running episodes get at the end; those of desktops last for minutes."""
DRAIN_S = 60.0
"""Time to end for a process on a busy machine: the recorders write what all slots send at last."""
WORK = {"env": names.ENV_STEPS, "rollout": names.ROLLOUT_REQUESTS, "recorder": names.RECORDER_STEPS}
"""The counter of each kind's work: steps, answered requests, and recorded observations."""


def spread_config(base: Config, slots: int, workers: int, pace_s: float, minutes: float) -> Config:
    """Return a deployment of N workers of each kind that share the slots, for ``minutes``.

    A slot steps every ``pace_s`` wall-clock seconds. Raises UserError if a worker would have no slot.
    """
    if slots < workers:
        raise UserError(f"{slots} slots are too few for {workers} workers: raise --slots to one a worker at least")
    replace, workload = msgspec.structs.replace, modes.workload_of(base)
    tasks = task_sets.load(Path(base.tasks.file))
    places = -(-slots // workers)
    scaled = replace(base, workload=replace(workload, time_scale=step_s(workload, tasks) / pace_s))
    clocked = clock_config(scaled, minutes)
    return with_partitions(
        replace(
            clocked,
            run=replace(clocked.run, settle_s=SETTLE_S, drain_s=DRAIN_S),
            env=replace(clocked.env, workers=workers, slots=places),
            rollout=replace(
                base.rollout, workers=workers, max_in_flight=places, roll_width=max(1, workers // modes.ROLLS)
            ),
            trainer=replace(base.trainer, groups_per_step=max(1, slots // GROUP)),
            curation=replace(base.curation, max_staleness=4),
        )
    )


def many_recorders(first: ProcessSpec, count: int) -> tuple[ProcessSpec, ...]:
    """Return N recorders like the first, which ``dart-streams run`` has alone."""
    *command, _ = first.command
    named = [f"recorder-{number}" for number in range(count)]
    return tuple(msgspec.structs.replace(first, name=name, command=(*command, name)) for name in named)


def spread_session(made: folder.RunFolder, console: Console, finish: Finish) -> Session:
    """Return the session of a run with as many recorders as env workers."""
    session = session_of(made, console, finish)
    assert session.processes is not None
    recorders = many_recorders(session.processes.recorder[0], made.config().env.workers)
    session.processes = msgspec.structs.replace(session.processes, recorder=recorders)
    return session


async def write_report(run: TrainingRun) -> None:
    """Write the run's report."""
    await report.finish(run.folder, run.follower, run.lags, jars.plots_folder())


def work_shares(readings: MetricsReader) -> dict[str, dict[str, int]]:
    """Return each worker's work by kind; a worker without a partition has none."""
    found: dict[str, dict[str, int]] = {}
    for kind, name in WORK.items():
        done: defaultdict[str, int] = defaultdict(int)
        for (process, _, _), points in readings.points.get(name, {}).items():
            done[process] += int(points[-1]["value"])
        found[kind] = dict(sorted(done.items()))
    return found


def spread_metrics(made: folder.RunFolder, pace_s: float) -> dict[str, Any]:
    """Return the metrics of a finished run: throughput, the workers' shares, and the store against the log."""
    phase, config, metrics = made.journal().phase("circle"), made.config(), made.path / "metrics"
    assert phase is not None and phase.ended_ms is not None
    readings, span_ms = MetricsReader(metrics), (phase.started_ms, phase.ended_ms)
    slots = config.env.workers * config.env.slots
    reported = msgspec.json.decode((made.path / "report.json").read_bytes())
    with store_session(config) as session:
        tables = compare_tables(session, config, None)
    shares = work_shares(readings)
    return {
        "workers": config.env.workers,
        "partitions": config.bus.topics.partitions,
        "minutes": round((span_ms[1] - span_ms[0]) / 60_000, 1),
        **slot_metrics(slots, pace_s, span_ms, readings, read_usage(metrics / USAGE_FILE)),
        "episodes": reported["trajectories"]["finished"],
        "train_steps": reported["train_steps"],
        "idle_workers": {kind: config.env.workers - sum(map(bool, shares[kind].values())) for kind in WORK},
        "work": {kind: {"least": min(own.values()), "most": max(own.values())} for kind, own in shares.items() if own},
        "lost": reported["lost"],
        "store_equals_log": all(table.equal for table in tables),
        "rows": {table.table: table.rows for table in tables},
        "rows_of_log": {table.table: table.rows_of_log for table in tables},
    }


def measure(base: Config, slots: int, workers: int, pace_s: float, minutes: float) -> dict[str, Any]:
    """Run a deployment for ``minutes`` over N workers of each kind; return its metrics.

    Raises UserError if a process fails for good.
    """
    config = spread_config(base, slots, workers, pace_s, minutes)
    made = folder.create(config, Path(base.tasks.file), f"workers-{workers}-{uuid.uuid4().hex[:6]}", resume=False)
    run_session(made, lambda log: spread_session(made, Console(file=log), write_report))
    return spread_metrics(made, pace_s)
