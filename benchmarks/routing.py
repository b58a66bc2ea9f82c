"""How requests reach rollout workers: by trajectory, as the broker does it, or by load: ``dart-streams bench routing``.

The deployment is DART's mode on times of a workload, as :mod:`benchmarks.simulation` plays it. A request that another
worker answers than the one before finds no prefix cache, which lengthens its prefill by the factor ``cold``.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal, get_args

import msgspec

from benchmarks.decoupling import WARM_S
from benchmarks.learning.report import estimate
from benchmarks.modes import DeploymentShape, Mode, mode_config, scale_shape
from benchmarks.simulation import Routing, Simulation, Way
from benchmarks.utilization import UtilizationMetrics, utilization_metrics
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets

Load = Literal["equal", "one slow"]
COLD = 3.5
"""Prompt tokens computed without prefix cache for one computed with it: 53,375 for 15,391 in a trajectory of 30 steps
that is shown in blocks (docs/lab/multi-turn.md)."""
SLOW = 2.0
"""Factor of the generation times of a slow worker."""
FULL_BATCH = 24
"""Groups of a step at 180 slots, scaled for others: they fill the slots once."""
STALENESS = 2
"""The default of ``curation.max_staleness``."""


class RoutingRow(msgspec.Struct, frozen=True):
    """Requests of one way, means over seeds: their wait for a place, their time in all, and what the slots achieve.

    ``_half`` is half of the 95 % interval over seeds; ``moved`` is the share of requests at another worker than the one
    before.
    """

    slots: int
    workers: int
    load: Load
    by: Way
    wait_s: float
    wait_half_s: float
    wait_p99_s: float
    request_s: float
    moved: float
    env_utilisation: float
    actions_per_min: float
    actions_half: float
    trained_steps_per_min: float
    trained_half: float


def measure(
    base: Config, slots: list[int], workers: list[int], seeds: int, hours: float, at_once: bool = False
) -> list[RoutingRow]:
    """Simulate each number of slots and workers with each load and way; all workers may switch ``at_once``."""
    mode: Mode = "dart-at-once" if at_once else "dart"
    tasks = task_sets.load(Path(base.tasks.file))
    found = []
    for shape in (routing_shape(one, each) for one in slots for each in workers):
        for load in get_args(Load):
            for way in get_args(Way):
                routing = Routing(by=way, slow=SLOW if load == "one slow" else 1.0, cold=COLD)
                made = []
                for seed in range(seeds):
                    simulation = Simulation(mode_config(base, mode, shape, seed), tasks, seed, routing=routing)
                    made.append(utilization_metrics(simulation.run(hours * 3600), WARM_S))
                found.append(routing_row(shape, load, way, made))
    return found


def routing_shape(slots: int, workers: int) -> DeploymentShape:
    """Return the shape of N slots whose requests find as many places at any number of workers."""
    shape = scale_shape(slots, FULL_BATCH, STALENESS)
    places = max(1, round(shape.places * shape.workers / workers))
    return msgspec.structs.replace(shape, workers=workers, places=places)


def routing_row(shape: DeploymentShape, load: Load, way: Way, made: Sequence[UtilizationMetrics]) -> RoutingRow:
    """Return the row of one way from its runs."""
    wait = estimate([one.request_wait_s or 0.0 for one in made])
    actions = estimate([one.actions_per_min for one in made])
    trained = estimate([one.trained_steps_per_min for one in made])
    return RoutingRow(
        slots=shape.slots,
        workers=shape.workers,
        load=load,
        by=way,
        wait_s=round(wait.mean, 3),
        wait_half_s=round(wait.half or 0.0, 3),
        wait_p99_s=round(fmean(one.request_wait_p99_s or 0.0 for one in made), 2),
        request_s=round(fmean(one.request_s or 0.0 for one in made), 3),
        moved=round(fmean(one.moved_share or 0.0 for one in made), 3),
        env_utilisation=round(fmean(one.env_utilisation for one in made), 3),
        actions_per_min=round(actions.mean, 1),
        actions_half=round(actions.half or 0.0, 1),
        trained_steps_per_min=round(trained.mean, 1),
        trained_half=round(trained.half or 0.0, 1),
    )
