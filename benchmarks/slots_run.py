"""Lets N slots live for a while, and returns what :mod:`benchmarks.slots` makes of it."""

import uuid
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from benchmarks import slots as crowd
from benchmarks.decoupling_run import clock_config, session_of
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets
from dart_streams.console.launch.services import jars
from dart_streams.console.launch.session import run_session
from dart_streams.console.launch.training_run import TrainingRun
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.metrics_reader import MetricsReader
from dart_streams.console.runs.process_usage import USAGE_FILE, read_usage
from dart_streams.console.views import report
from dart_streams.errors import UserError


def measure(base: Config, slots: int, pace_s: float, minutes: float) -> dict[str, Any]:
    """Let a deployment live for N minutes of the clock after its start, and return the figures.

    Raises
    ------
    UserError
        If a process is beyond help, or the run is too short for figures.
    """
    if minutes * 60 <= crowd.WARM_S:
        raise UserError(f"figures begin after {crowd.WARM_S:g} s: choose more --minutes than {crowd.WARM_S / 60:g}")
    config = crowd.pace_config(base, task_sets.load(Path(base.tasks.file)), slots, pace_s)
    # A bound of the workload's scale would be the machine's as well: requests have theirs by the clock (`clocked`).
    config = clock_config(config, minutes)
    made = folder.create(config, Path(base.tasks.file), f"slots-{slots}-{uuid.uuid4().hex[:6]}", resume=False)

    async def finish(run: TrainingRun) -> None:
        await report.finish(run.folder, run.follower, run.lags, jars.plots_folder())

    run_session(made, lambda log: session_of(made, Console(file=log), finish))
    phase = made.journal().phase("circle")
    assert phase is not None and phase.ended_ms is not None
    metrics = made.path / "metrics"
    span_ms = (phase.started_ms + int(crowd.WARM_S * 1000), phase.ended_ms)
    found = crowd.slot_metrics(slots, pace_s, span_ms, MetricsReader(metrics), read_usage(metrics / USAGE_FILE))
    reported = msgspec.json.decode((made.path / "report.json").read_bytes())
    return found | {"lost": reported["lost"], "train_steps": reported["train_steps"]}
