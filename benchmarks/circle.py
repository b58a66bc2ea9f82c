"""Coupled against decoupled with real parts: ``dart-streams bench circle``.

MiniWoB++ in Chromium, the tiny policy on vLLM, the trainer on torch, everything else as ever; the same slots, batch,
curation and processes in both modes, which take turns over the seeds. Figures are those of
:mod:`benchmarks.utilization`, by the clock.

What a step costs, once the run is warm, is given in parts. ``browser`` is what an env worker has started, ``engine`` a
rollout worker without its event loop, ``trainer`` the trainer; the others are the circle's own overhead. With a
configuration that has a ``[workload]`` the circle turns without browser, model and optimizer, at the workload's pace:
then the overhead is nearly all there is.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from benchmarks.decoupling import Play, by_turns, median_metrics, median_ratios, ratio_spreads
from benchmarks.modes import DISPATCH, Mode
from benchmarks.process_costs import by_kind
from benchmarks.utilization import UtilizationMetrics, utilization_metrics
from dart_streams.config import Config
from dart_streams.console.runs.process_usage import ProcessUsage, cpu_seconds

COMPARED: tuple[Mode, ...] = ("coupled", "dart")
WARM_S = 60.0
"""Figures begin with the first version after N seconds."""
NOT_OURS = frozenset(["browser", "engine", "trainer"])


class CircleRow(msgspec.Struct, frozen=True):
    """A mode, for people."""

    mode: str
    steps_per_s: float
    trained_steps_per_s: float
    env_utilisation: str
    rollout_utilisation: str
    staleness_max: int
    core_ms_per_step: float
    of_them_ours: float


def circle_config(base: Config, mode: Mode, seed: int) -> Config:
    """Return the configuration of a mode: ``base`` but for who waits for whom."""
    replace, coupled = msgspec.structs.replace, DISPATCH[mode] == "coupled"
    dispatch = replace(base.curation.dispatch, mode=DISPATCH[mode], seed=seed)
    return replace(
        base,
        rollout=replace(base.rollout, roll_width=base.rollout.workers if coupled else base.rollout.roll_width),
        curation=replace(base.curation, dispatch=dispatch),
    )


def measure(
    base: Config, seeds: int, play: Play, modes: Sequence[Mode] = COMPARED
) -> dict[Mode, list[UtilizationMetrics]]:
    """Play the modes with every seed, and return the figures of each."""
    return by_turns(
        modes, seeds, lambda mode, seed: utilization_metrics(play(circle_config(base, mode, seed), mode, seed), WARM_S)
    )


def step_costs(usage: Iterable[ProcessUsage], start_ms: int, end_ms: int, steps: int) -> dict[str, Any]:
    """Return what a step cost between two times (epoch milliseconds), in core-milliseconds, by part and in all."""
    usage = list(usage)
    tree, own, loop = (
        by_kind(cpu_seconds(usage, start_ms, end_ms, attrgetter(what))) for what in ("cpu_s", "own_s", "loop_s")
    )
    parts = dict(tree)
    parts["env"], parts["browser"] = own["env"], tree["env"] - own["env"]
    parts["rollout"], parts["engine"] = loop["rollout"], tree["rollout"] - loop["rollout"]
    total = sum(parts.values())
    core_ms = {name: round(1000 * cpu_s / steps, 2) for name, cpu_s in sorted(parts.items())}
    return {
        "core_ms_per_step": core_ms,
        "share": {name: round(cpu_s / total, 3) for name, cpu_s in sorted(parts.items())},
        "all": round(1000 * total / steps, 1),
        "ours": round(sum(value for name, value in core_ms.items() if name not in NOT_OURS), 1),
        "steps": steps,
        "cores": round(1000 * total / (end_ms - start_ms), 2),
    }


def compare_runs(found: dict[Mode, list[UtilizationMetrics]], cpu: dict[Mode, dict[str, Any]]) -> dict[str, Any]:
    """Return medians, ratios and costs as one value for ``--json``; ratios are to the first mode."""
    first = next(iter(found.values()))
    return {
        "modes": {mode: median_metrics(runs) for mode, runs in found.items()},
        "ratios": {mode: median_ratios(runs, first) for mode, runs in found.items()},
        "spread": {mode: ratio_spreads(runs, first) for mode, runs in found.items()},
        "cpu": cpu,
        "seeds": len(first),
    }


def table_rows(comparison: dict[str, Any]) -> list[CircleRow]:
    """Return the table."""
    return [
        CircleRow(
            mode=mode,
            steps_per_s=round(made["actions_per_min"] / 60, 2),
            trained_steps_per_s=round(made["trained_steps_per_min"] / 60, 2),
            env_utilisation=f"{made['env_utilisation']:.1%}",
            rollout_utilisation=f"{made['rollout_utilisation']:.1%}",
            staleness_max=made["staleness_max"],
            core_ms_per_step=comparison["cpu"][mode]["all"],
            of_them_ours=comparison["cpu"][mode]["ours"],
        )
        for mode, made in comparison["modes"].items()
    ]
