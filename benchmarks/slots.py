"""Capacity of this machine in slots at the pace of desktops: ``dart-streams bench slots``.

All services and processes are real; model and desktops take times from a workload, scaled so that each slot steps every
``pace_s`` wall-clock seconds, resets included. Metrics begin after :data:`WARM_S`.
"""

import math
import random
import statistics
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from benchmarks.decoupling_run import by_kind, clock_config, session_of
from benchmarks.modes import workload_of
from console.launch.services import jars
from console.launch.session import run_session
from console.launch.training_run import TrainingRun
from console.runs import run_folder as folder
from console.runs.metrics_reader import MetricsReader
from console.runs.process_usage import USAGE_FILE, ProcessUsage, cpu_seconds, read_usage
from console.views import report
from console.views.optional_numbers import round_optional
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets
from dart_streams.config.tasks import Task, TaskSet
from dart_streams.config.workload import Workload, draw_course, typical_steps
from dart_streams.telemetry import names

WARM_S = 180.0
"""Time for all first resets and for the JVMs' compilers."""
SETTLE_S = 5.0
"""Time that running episodes get at the end."""
SLOTS_A_WORKER = 500
"""Slots per env worker process."""
DRAWS = 2000
FULLNESS = 0.3
"""Assumed utilization of engines."""
GROUP = 8
"""Rollouts per group, for the size of a training step."""


class SlotsRow(msgspec.Struct, frozen=True):
    """A number of slots in the printed table."""

    slots: int
    steps_per_s: str
    overhead_ms: str
    timed_out: int
    lag_max: int
    cores: float
    stolen_cores: float
    core_ms_per_step: float
    env_mb_per_slot: float


def pace_config(base: Config, tasks: TaskSet, slots: int, pace_s: float) -> Config:
    """Return a deployment of N slots that step every ``pace_s`` wall-clock seconds."""
    replace, workers = msgspec.structs.replace, -(-slots // SLOTS_A_WORKER)
    workload = workload_of(base)
    return replace(
        base,
        run=replace(base.run, settle_s=SETTLE_S),
        env=replace(base.env, workers=workers, slots=-(-slots // workers)),
        rollout=replace(base.rollout, workers=2, max_in_flight=slots),
        trainer=replace(base.trainer, groups_per_step=max(1, slots // GROUP)),
        curation=replace(base.curation, max_staleness=4),
        workload=replace(workload, time_scale=step_s(workload, tasks) / pace_s),
    )


def step_s(workload: Workload, tasks: TaskSet) -> float:
    """Return the mean simulated seconds between steps of a slot, with resets and hangs."""
    rng = random.Random(workload.seed)
    played_s = statistics.mean(rollout_s(workload, rng.choice(tasks.train), rng) for _ in range(DRAWS))
    steps = statistics.mean(typical_steps(task.page) or task.max_steps for task in tasks.train)
    return played_s / (steps * math.exp(workload.steps_sigma**2 / 2))


def rollout_s(workload: Workload, task: Task, rng: random.Random) -> float:
    """Return the duration of a rollout; one that hangs is repeated."""
    drawn = draw_course(workload, task.task_id, typical_steps(task.page) or 1, rng)
    if drawn.hangs_at is None:
        return played_s(workload, drawn.steps, rng) + workload.evaluate_s.draw(rng)
    before_s = played_s(workload, drawn.hangs_at - 1, rng) if drawn.hangs_at else 0.0
    return before_s + workload.call_s + rollout_s(workload, task, rng)


def played_s(workload: Workload, steps: int, rng: random.Random) -> float:
    """Return the duration of a reset and N steps."""
    engine = workload.generation
    acted_s = sum(workload.settle_s.draw(rng) + engine.takes_s(engine.tokens.draw(rng), FULLNESS) for _ in range(steps))
    return workload.reset_s.draw(rng) + acted_s


def slot_metrics(
    slots: int, pace_s: float, span_ms: tuple[int, int], readings: MetricsReader, usage: Iterable[ProcessUsage]
) -> dict[str, Any]:
    """Return the metrics between two times (epoch ms)."""
    usage = list(usage)
    seconds = (span_ms[1] - span_ms[0]) / 1000
    steps = readings.counter(names.ENV_STEPS, *span_ms)
    overhead = readings.distribution(names.ENV_OVERHEAD_MS, *span_ms)
    by_process = by_kind(cpu_seconds(usage, *span_ms))
    memory = by_kind({name: max(each.rss_mb for each in usage if each.process == name) for name in names_of(usage)})
    return {
        "slots": slots,
        "steps_per_s": round(steps / seconds, 1),
        "wanted_steps_per_s": round(slots / pace_s, 1),
        "overhead_ms": {
            "p50": round_optional(overhead.quantile(0.5), 1) if overhead else None,
            "p99": round_optional(overhead.quantile(0.99), 1) if overhead else None,
        },
        "timed_out": int(readings.counter(names.ENV_REQUESTS_TIMED_OUT, *span_ms)),
        "lag_max": largest_lags(readings, span_ms),
        "cores": round(sum(by_process.values()) / seconds, 2),
        "stolen_cores": round(stolen_s(usage, *span_ms) / seconds, 3),
        "core_ms_per_step": {name: round(1000 * cpu_s / steps, 2) for name, cpu_s in by_process.items()}
        if steps
        else {},
        "rss_mb": memory,
        "env_mb_per_slot": round(memory.get("env", 0.0) / slots, 2),
    }


def stolen_s(usage: Iterable[ProcessUsage], start_ms: int, end_ms: int) -> float:
    """Return the CPU seconds stolen by the machine's host between two times."""
    inside = [one.stolen_s for one in usage if one.process == "supervisor" and start_ms <= one.at_ms <= end_ms]
    return max(inside, default=0.0) - min(inside, default=0.0)


def names_of(usage: Iterable[ProcessUsage]) -> set[str]:
    """Return the sampled processes."""
    return {sample.process for sample in usage}


def largest_lags(readings: MetricsReader, span_ms: tuple[int, int]) -> dict[str, int]:
    """Return the largest lag of each consumer group and topic."""
    found: dict[str, int] = {}
    for (_, attributes, _), points in readings.points.get(names.MONITOR_LAG, {}).items():
        inside = [int(point.value) for point in points if span_ms[0] <= point.at_ms <= span_ms[1]]
        where = msgspec.json.decode(attributes)
        found[f"{where['group']} {where['topic']}"] = max(inside, default=0)
    return dict(sorted(found.items()))


def table_rows(found: Iterable[dict[str, Any]]) -> list[SlotsRow]:
    """Return the rows of the table."""
    return [
        SlotsRow(
            slots=one["slots"],
            steps_per_s=f"{one['steps_per_s']} of {one['wanted_steps_per_s']}",
            overhead_ms=f"p50 {one['overhead_ms']['p50']}, p99 {one['overhead_ms']['p99']}",
            timed_out=one["timed_out"],
            lag_max=max(one["lag_max"].values(), default=0),
            cores=one["cores"],
            stolen_cores=one["stolen_cores"],
            core_ms_per_step=round(sum(one["core_ms_per_step"].values()), 1),
            env_mb_per_slot=one["env_mb_per_slot"],
        )
        for one in found
    ]


def measure(base: Config, slots: int, pace_s: float, minutes: float) -> dict[str, Any]:
    """Run a deployment for ``minutes``, more than :data:`WARM_S`; return its metrics.

    Raises UserError if a process fails.
    """
    config = pace_config(base, task_sets.load(Path(base.tasks.file)), slots, pace_s)
    # A bound of the workload's scale would be the machine's as well: requests have theirs by the clock (`clocked`).
    config = clock_config(config, minutes)
    made = folder.create(config, Path(base.tasks.file), f"slots-{slots}-{uuid.uuid4().hex[:6]}", resume=False)

    async def finish(run: TrainingRun) -> None:
        await report.finish(run.folder, run.follower, run.lags, jars.plots_folder())

    run_session(made, lambda log: session_of(made, Console(file=log), finish))
    phase = made.journal().phase("circle")
    assert phase is not None and phase.ended_ms is not None
    metrics = made.path / "metrics"
    span_ms = (phase.started_ms + int(WARM_S * 1000), phase.ended_ms)
    found = slot_metrics(slots, pace_s, span_ms, MetricsReader(metrics), read_usage(metrics / USAGE_FILE))
    reported = msgspec.json.decode((made.path / "report.json").read_bytes())
    return found | {"lost": reported["lost"], "train_steps": reported["train_steps"]}
