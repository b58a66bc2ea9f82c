"""Comparison of decoupled and coupled modes: ``dart-streams bench decoupling``.

The modes of :mod:`benchmarks.modes` run on one workload and the same seeds, in alternating order, so that other load
meets all alike. Metrics are medians over seeds; ratios are medians, minima and maxima of the seeds' ratios.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import modes
from benchmarks.modes import MODES, DeploymentShape, Mode
from benchmarks.simulation import Overheads, Simulation
from benchmarks.utilization import Account, UtilizationMetrics, ratio_to, utilization_metrics
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets

COMPARED = (
    "env_utilisation",
    "rollout_utilisation",
    "rollout_occupancy",
    "actions_per_min",
    "trained_steps_per_min",
)
CHECKED = ("env_utilisation", "rollout_utilisation", "actions_per_min", "trained_steps_per_min")
SIMULATED_SEEDS = 10
"""Seeds of the simulation that real runs are compared with."""
WARM_S = 1800.0
"""Seconds of simulated time before the first version that counts."""

Play = Callable[[Config, Mode, int], Account]
"""Runs a mode's deployment with a seed; returns its account."""


class DecouplingRow(msgspec.Struct, frozen=True):
    """A mode in the printed table: each metric with its ratio to coupled, minimum and maximum."""

    mode: str
    env_utilisation: str
    rollout_utilisation: str
    actions_per_min: str
    trained_steps_per_min: str
    request_wait_s: str
    staleness_max: int
    wasted: str


def measure(base: Config, shape: DeploymentShape, seeds: int, play: Play) -> dict[Mode, list[UtilizationMetrics]]:
    """Play every mode with every seed; return the metrics of each."""
    return by_turns(
        MODES,
        seeds,
        lambda mode, seed: utilization_metrics(play(modes.mode_config(base, mode, shape, seed), mode, seed), WARM_S),
    )


def by_turns(
    compared: Sequence[Mode], seeds: int, play: Callable[[Mode, int], UtilizationMetrics]
) -> dict[Mode, list[UtilizationMetrics]]:
    """Play each seed's modes in alternating order."""
    found: dict[Mode, list[UtilizationMetrics]] = {mode: [] for mode in compared}
    for seed in range(seeds):
        for mode in compared if seed % 2 else compared[::-1]:
            found[mode].append(play(mode, seed))
    return found


class SimulatedRun:
    """Plays deployments as discrete events for N simulated hours, with a mode's overheads."""

    def __init__(self, base: Config, hours: float, overheads: Mapping[Mode, Overheads] | None = None) -> None:
        self.tasks = task_sets.load(Path(base.tasks.file))
        self.seconds = hours * 3600
        self.overheads = overheads or {}

    def play(self, config: Config, mode: Mode, seed: int) -> Account:
        """Simulate a deployment; return its account."""
        return Simulation(config, self.tasks, seed, self.overheads.get(mode)).run(self.seconds)


def compare_modes(found: dict[Mode, list[UtilizationMetrics]], base: Config, shape: DeploymentShape) -> dict[str, Any]:
    """Return medians and ratios as printed with ``--json``."""
    return {
        "modes": {mode: median_metrics(runs) for mode, runs in found.items()},
        "ratios": {mode: median_ratios(runs, found["coupled"]) for mode, runs in found.items()},
        "ratios_to_restart": {mode: median_ratios(runs, found["coupled-restart"]) for mode, runs in found.items()},
        "spread": {mode: ratio_spreads(runs, found["coupled"]) for mode, runs in found.items()},
        "spread_to_restart": {mode: ratio_spreads(runs, found["coupled-restart"]) for mode, runs in found.items()},
        "seeds": len(found["coupled"]),
        "shape": msgspec.to_builtins(shape),
        "time_scale": modes.workload_of(base).time_scale,
    }


def add_simulation(
    comparison: dict[str, Any], base: Config, shape: DeploymentShape, hours: float, overheads: Mapping[Mode, Overheads]
) -> dict[str, Any]:
    """Return a comparison of real runs with a simulation of the same length, and their ratios."""
    found = measure(base, shape, SIMULATED_SEEDS, SimulatedRun(base, hours, overheads).play)
    simulated = {mode: median_metrics(runs) for mode, runs in found.items()}
    return comparison | {
        "overhead_s": {mode: round(overhead.step_s, 3) for mode, overhead in overheads.items()},
        "simulated": simulated,
        "to_simulated": {
            mode: {name: ratio_to(made[name], simulated[mode][name], 3) for name in CHECKED}
            for mode, made in comparison["modes"].items()
        },
    }


def median_metrics(runs: Sequence[UtilizationMetrics]) -> dict[str, float]:
    """Return the median of each known metric over seeds, and the maximum of ``staleness_max``."""
    rows = [msgspec.structs.asdict(run) for run in runs]
    known = {name: [row[name] for row in rows if row[name] is not None] for name in rows[0]}
    found = {name: round(statistics.median(values), 4) for name, values in known.items() if values}
    return found | {"staleness_max": max(run.staleness_max for run in runs)}


def paired_ratios(runs: Sequence[UtilizationMetrics], others: Sequence[UtilizationMetrics], name: str) -> list[float]:
    """Return a metric's ratio to another mode's, seed by seed."""
    return [ratio_to(getattr(run, name), getattr(other, name), 3) for run, other in zip(runs, others, strict=True)]


def median_ratios(runs: Sequence[UtilizationMetrics], others: Sequence[UtilizationMetrics]) -> dict[str, float]:
    """Return the median ratio of each compared metric."""
    return {name: round(statistics.median(paired_ratios(runs, others, name)), 3) for name in COMPARED}


def ratio_spreads(
    runs: Sequence[UtilizationMetrics], others: Sequence[UtilizationMetrics]
) -> dict[str, tuple[float, float]]:
    """Return the minimum and maximum ratio over seeds."""
    pairs = {name: paired_ratios(runs, others, name) for name in COMPARED}
    return {name: (min(values), max(values)) for name, values in pairs.items()}


def table_rows(comparison: dict[str, Any]) -> list[DecouplingRow]:
    """Return the rows of the table."""

    def reported(mode: str, name: str, form: str) -> str:
        low, high = comparison["spread"][mode][name]
        figure = format(comparison["modes"][mode][name], form)
        return f"{figure}\n{comparison['ratios'][mode][name]:.2f}x ({low:.2f}-{high:.2f})"

    return [
        DecouplingRow(
            mode=mode,
            env_utilisation=reported(mode, "env_utilisation", ".1%"),
            rollout_utilisation=reported(mode, "rollout_utilisation", ".1%"),
            actions_per_min=reported(mode, "actions_per_min", ".1f"),
            trained_steps_per_min=reported(mode, "trained_steps_per_min", ".1f"),
            request_wait_s=f"mean {made['request_wait_s']:.2f}\np99 {made['request_wait_p99_s']:.1f}",
            staleness_max=made["staleness_max"],
            wasted=f"{made['wasted']:.0%}",
        )
        for mode, made in comparison["modes"].items()
    ]
