"""Comparison of runs as a table: gains with intervals, and differences to the base. Without torch.

Runs are paired by seed. Intervals are Student's, of the mean over seeds: they measure chance, not other deployments or
task sets.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.learning.results import TEMPERATURES, LearningRun
from benchmarks.learning.variants import BASE

STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""0.975 quantiles of Student's t distribution for 1, 2, ... degrees of freedom."""
SAMPLED = 1.0
"""Temperature of training."""
MAX_SEEDS = len(STUDENT_95) + 1
Measure = Callable[[LearningRun, float], float]
"""Figure of a run at a temperature."""


class Estimate(msgspec.Struct, frozen=True):
    """Mean over seeds, standard error, and half of the 95 % interval (None for one seed)."""

    mean: float
    error: float | None
    half: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.half is not None and abs(self.mean) > self.half


class Comparison(msgspec.Struct, frozen=True):
    """A variant's gains and success after training, and their differences to the base, by temperature, over N seeds.

    A variant with a warm-up of its own may start lower, and gain more without a better end. ``trained`` is the success
    on the training tasks after training.
    """

    variant: str
    seeds: int
    gains: dict[float, Estimate]
    differences: dict[float, Estimate]
    ends: dict[float, Estimate]
    end_differences: dict[float, Estimate]
    trained: Estimate | None = None
    trained_difference: Estimate | None = None


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of values with its uncertainty."""
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Estimate(mean, None, None)
    error = statistics.stdev(values) / math.sqrt(count)
    return Estimate(mean, error, error * STUDENT_95[min(count, MAX_SEEDS) - 2])


def compare_variants(runs: Sequence[LearningRun]) -> list[Comparison]:
    """Return a comparison of each variant that shares seeds with the base, the base first."""
    of_variants: dict[str, dict[int, LearningRun]] = {}
    for run in runs:
        of_variants.setdefault(run.variant, {})[run.seed] = run
    base = of_variants.get(BASE, {})
    names = sorted(of_variants, key=lambda name: name != BASE)
    return [compare_variant(name, of_variants[name], base) for name in names if of_variants[name].keys() & base.keys()]


def compare_variant(name: str, own: Mapping[int, LearningRun], base: Mapping[int, LearningRun]) -> Comparison:
    """Return the comparison of one variant."""
    seeds = sorted(own.keys() & base.keys())
    pairs = [(own[seed], base[seed]) for seed in seeds]
    gain, end = LearningRun.gain, LearningRun.end
    gains, ends = (estimate_all([own for own, _ in pairs], measure) for measure in (gain, end))
    rates = [
        (one.train_after.rate, other.train_after.rate) for one, other in pairs if one.train_after and other.train_after
    ]
    trained = estimate([rate for rate, _ in rates]) if rates else None
    if name == BASE:
        return Comparison(name, len(seeds), gains, {}, ends, {}, trained)
    return Comparison(
        name,
        len(seeds),
        gains,
        estimate_differences(pairs, gain),
        ends,
        estimate_differences(pairs, end),
        trained,
        estimate([rate - of_base for rate, of_base in rates]) if rates else None,
    )


def estimate_all(runs: Sequence[LearningRun], measure: Measure) -> dict[float, Estimate]:
    """Return a measure's estimate over runs, by temperature."""
    return {one: estimate([measure(run, one) for run in runs]) for one in TEMPERATURES}


def estimate_differences(pairs: Sequence[tuple[LearningRun, LearningRun]], measure: Measure) -> dict[float, Estimate]:
    """Return the estimate of a measure's difference between two runs of a seed, by temperature."""
    return {one: estimate([measure(own, one) - measure(base, one) for own, base in pairs]) for one in TEMPERATURES}


class GainRow(msgspec.Struct, frozen=True):
    """A row in points: gains and differences to the base, at temperatures 1, 0.5 and 0.

    ``end`` is the success after training at temperature 1, ``trained`` that on the training tasks.
    """

    variant: str
    seeds: int
    end: str
    end_to_base: str
    sampled: str
    at_half: str
    greedy: str
    sampled_to_base: str
    at_half_to_base: str
    greedy_to_base: str
    trained: str
    trained_to_base: str


def table_rows(comparisons: Sequence[Comparison]) -> list[GainRow]:
    """Return the rows of the table."""
    return [GainRow(one.variant, one.seeds, *row_cells(one)) for one in comparisons]


def row_cells(one: Comparison) -> list[str]:
    """Return the points of a row."""
    signed = [one.end_differences.get(SAMPLED), *one.gains.values(), *map(one.differences.get, TEMPERATURES)]
    return [
        format_points(one.ends[SAMPLED], signed=False),
        *(format_points(value) if value else "" for value in signed),
        format_points(one.trained, signed=False) if one.trained else "",
        format_points(one.trained_difference) if one.trained_difference else "",
    ]


def format_points(value: Estimate, *, signed: bool = True) -> str:
    """Return an estimate in points with half of its interval; ``*`` if a signed one excludes 0."""
    sign = "+" if signed else ""
    if value.half is None:
        return f"{100 * value.mean:{sign}.1f}"
    mark = " *" if signed and value.excludes_zero else ""
    return f"{100 * value.mean:{sign}.1f} ± {100 * value.half:.1f}{mark}"


def learning_curves(runs: Sequence[LearningRun]) -> dict[str, list[tuple[int, Estimate]]]:
    """Return each variant's mean rate at each mark, over its seeds."""
    rates: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        own = rates.setdefault(run.variant, {})
        for mark in run.curve:
            own.setdefault(mark.episodes, []).append(mark.rate)
    return {
        variant: [(episodes, estimate(own[episodes])) for episodes in sorted(own)] for variant, own in rates.items()
    }


def draw(runs: Sequence[LearningRun], path: Path) -> None:
    """Draw each variant's learning curve beside the base's, with 95 % intervals."""
    from matplotlib.figure import Figure

    lines = learning_curves(runs)
    names = [name for name in lines if name != BASE] or [BASE]
    columns = min(4, len(names))
    figure = Figure(figsize=(3.2 * columns, 2.6 * -(-len(names) // columns)), layout="constrained")
    panels = figure.subplots(-(-len(names) // columns), columns, sharex=True, sharey=True, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        for number, shown in enumerate(dict.fromkeys((BASE, name))):
            if shown in lines:
                draw_curve(panel, lines[shown], shown, f"C{number}")
        panel.legend(fontsize=7)
    figure.supxlabel("training episodes")
    figure.supylabel("held-out success at temperature 1")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_curve(panel: Any, line: Sequence[tuple[int, Estimate]], name: str, color: str) -> None:
    """Draw a curve with its interval."""
    episodes, means = [mark for mark, _ in line], [value.mean for _, value in line]
    halves = [value.half or 0.0 for _, value in line]
    panel.plot(episodes, means, color=color, label=name)
    low, high = zip(*((mean - half, mean + half) for mean, half in zip(means, halves, strict=True)), strict=True)
    panel.fill_between(episodes, low, high, color=color, alpha=0.2)
