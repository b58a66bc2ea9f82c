"""The plots of a report, as SVG text (matplotlib). Each draws one thing of a report's inputs; None without data for it.

Times are minutes since training began.
"""

import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dart_streams.history.evaluation import EvaluationResult
from dart_streams.history.run_state import SLICE_MS
from dart_streams.telemetry import names
from dart_streams.views.metrics import ReportInputs, ages_of, mean

INK, MUTED, GRID = "#1d2330", "#737b8c", "#e6e9ef"
BLUE, GREEN, AMBER, RED, VIOLET = "#2f6fed", "#129b77", "#e29a1b", "#d5493f", "#7c5cd6"
GREY, TEAL = "#a7aebb", "#2aa5b8"
OUTCOMES = {
    "success": GREEN,
    "failure": RED,
    "truncated": AMBER,
    "invalid_action": VIOLET,
    "env_error": "#5b6270",
    "policy_error": "#20242c",
    "cancelled": GREY,
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "DejaVu Sans"],
    "font.size": 10,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
SMOOTHING = 6
"""Time slices that a smoothed point looks back over."""


class Drawing:
    """A figure under way; :attr:`svg` is set when the body of :func:`drawing` ends."""

    def __init__(self, figure: Figure, axes: list[Axes]) -> None:
        self.figure = figure
        self.axes = axes
        self.svg = ""


@contextmanager
def drawing(width: float, height: float, rows: int = 1, columns: int = 1, **settings: Any) -> Iterator[Drawing]:
    """Yield axes of a figure of ``width`` x ``height`` inches in the report's style."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **settings)
        made = Drawing(figure, list(axes.flat))
        yield made
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True)
        made.svg = text.getvalue()[text.getvalue().index("<svg") :]


def minutes(inputs: ReportInputs, at_ms: float) -> float:
    """Return a time as minutes since training began."""
    return (at_ms - inputs.circle.started_ms) / 60_000


def rolling(values: Sequence[tuple[float, float]], width: int = SMOOTHING) -> list[float | None]:
    """Return the ratio of sums over the last ``width`` pairs (numerator, denominator), None where that is empty."""
    result: list[float | None] = []
    for index in range(len(values)):
        part = values[max(0, index + 1 - width) : index + 1]
        below = sum(denominator for _, denominator in part)
        result.append(sum(numerator for numerator, _ in part) / below if below else None)
    return result


def success(inputs: ReportInputs, before: EvaluationResult | None, after: EvaluationResult | None) -> str | None:
    """Draw training success over time, with the held-out evaluations at both ends."""
    numbers = inputs.slices
    parts = [inputs.progress.slices.get(number) for number in numbers]
    pairs = [(part.reward, float(part.rewarded)) if part else (0.0, 0.0) for part in parts]
    if not any(count for _, count in pairs):
        return None
    times = [minutes(inputs, number * SLICE_MS + SLICE_MS / 2) for number in numbers]
    with drawing(9.6, 3.3) as made:
        axes = made.axes[0]
        dots = [(t, reward / count) for t, (reward, count) in zip(times, pairs, strict=True) if count]
        axes.scatter([t for t, _ in dots], [rate for _, rate in dots], s=9, color=BLUE, alpha=0.25, linewidths=0)
        axes.plot(times, [float("nan") if v is None else v for v in rolling(pairs)], color=BLUE, lw=2.2)
        axes.text(times[0], 0.93, "training episodes, sampled", color=BLUE)
        last = minutes(inputs, inputs.circle.ended_ms or 0)
        margin = max(0.25, last * 0.035)
        for result, at, colour, name in ((before, -margin, MUTED, "before"), (after, last + margin, GREEN, "after")):
            if result is not None:
                held_out(axes, result, at, colour, name)
        versions = [minutes(inputs, v.at_ms) for v in inputs.progress.versions.values()]
        axes.vlines([v for v in versions if 0 <= v <= last], 0, 0.025, color=AMBER, lw=1.2)
        axes.set(ylim=(0, 1.02), xlim=(-2 * margin, last + 2 * margin), xlabel="minutes of training")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return made.svg


def held_out(axes: Axes, result: EvaluationResult, at: float, colour: str, name: str) -> None:
    """Draw one held-out evaluation with its interval."""
    rate = result.overall
    errors = [[rate.rate - rate.low], [rate.high - rate.rate]]
    axes.errorbar([at], [rate.rate], yerr=errors, fmt="o", ms=8, color=colour, capsize=4, lw=1.8, zorder=5)
    axes.text(at, rate.high + 0.03, f"{name}\n{rate.rate:.0%}", color=colour, ha="center", va="bottom", weight="bold")


def pages(before: EvaluationResult | None, after: EvaluationResult | None) -> str | None:
    """Draw held-out success by page, before and after, with intervals."""
    if before is None or after is None:
        return None
    ordered = sorted(after.per_page, key=lambda page: after.per_page[page].rate)
    with drawing(9.6, 0.9 + 0.36 * len(ordered)) as made:
        axes = made.axes[0]
        for row, page in enumerate(ordered):
            first, second = before.per_page.get(page), after.per_page[page]
            if first is not None:
                axes.plot([first.rate, second.rate], [row, row], color=GRID, lw=5, solid_capstyle="round", zorder=1)
                axes.plot([first.low, first.high], [row + 0.13] * 2, color=GREY, lw=1.2)
                axes.scatter([first.rate], [row], s=52, color=GREY, zorder=3)
            axes.plot([second.low, second.high], [row - 0.13] * 2, color=GREEN, lw=1.2, alpha=0.7)
            axes.scatter([second.rate], [row], s=52, color=GREEN, zorder=4)
        axes.set_yticks(range(len(ordered)), ordered, color=INK)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.6, len(ordered) - 0.4))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="y", visible=False)
    return made.svg


STATES = {"step": BLUE, "evaluate": VIOLET, "wait": TEAL, "reset": AMBER, "idle": GRID}
"""What a slot does, from the bottom of the plot to its top."""


def flow(inputs: ReportInputs) -> str | None:
    """Draw what the slots did, by the env workers' metrics, and steps a second, over time."""
    numbers = inputs.slices
    if not numbers:
        return None
    times = [minutes(inputs, number * SLICE_MS + SLICE_MS / 2) for number in numbers]
    spent = inputs.readings.growth(names.ENV_SLOT_MS, "state", SLICE_MS)
    parts = [inputs.progress.slices.get(number) for number in numbers]
    rates = [(float(part.steps), SLICE_MS / 1000) if part else (0.0, SLICE_MS / 1000) for part in parts]
    with drawing(9.6, 3.6, rows=2, sharex=True) as made:
        upper, lower = made.axes
        whole = [sum(spent.get(number, {}).values()) or 1.0 for number in numbers]
        shares = [
            [spent.get(number, {}).get(state, 0.0) / all_ms for number, all_ms in zip(numbers, whole, strict=True)]
            for state in STATES
        ]
        upper.stackplot(times, shares, colors=list(STATES.values()), labels=list(STATES), lw=0, alpha=0.85)
        upper.set(ylim=(0, 1), ylabel="slot time")
        upper.yaxis.set_major_formatter(PercentFormatter(1.0))
        upper.legend(loc="lower left", bbox_to_anchor=(0, 0.98), ncols=len(STATES), handlelength=0.8)
        lower.plot(times, [count / SLICE_MS * 1000 for count, _ in rates], color=BLUE, lw=0.8, alpha=0.35)
        lower.plot(times, [value or 0.0 for value in rolling(rates)], color=BLUE, lw=1.8)
        lower.set(ylim=(0, None), ylabel="env steps/s", xlabel="minutes of training")
    return made.svg


def staleness(inputs: ReportInputs) -> str | None:
    """Draw how old trajectories were when trained on, an optimiser step each."""
    rows = [(row["train_step"], ages) for row in inputs.trained if (ages := ages_of(inputs, row))]
    if not rows:
        return None
    bound = inputs.config.curation.max_staleness
    with drawing(4.7, 2.6) as made:
        axes = made.axes[0]
        steps = [step for step, _ in rows]
        axes.bar(steps, [max(ages) for _, ages in rows], width=0.9, color=AMBER, alpha=0.35, label="oldest")
        axes.plot(steps, [mean(ages) or 0.0 for _, ages in rows], color=AMBER, lw=1.8, label="mean")
        axes.axhline(bound, color=RED, lw=1.2, ls=(0, (4, 3)), label="bound")
        axes.set(ylim=(0, bound + 0.8), xlabel="optimiser step", ylabel="versions")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(ncols=3, loc="upper left")
    return made.svg


def pauses(inputs: ReportInputs) -> str | None:
    """Draw how long generation paused for each weight switch."""
    switches = inputs.progress.switches
    if not switches:
        return None
    with drawing(4.7, 2.6) as made:
        axes = made.axes[0]
        versions, values = [s.version for s in switches], [s.pause_ms for s in switches]
        axes.vlines(versions, 0, values, color=VIOLET, lw=1.2, alpha=0.5)
        axes.scatter(versions, values, s=16, color=VIOLET)
        axes.set(ylim=(0, max(1.0, *values) * 1.15), xlabel="weight version", ylabel="pause, ms")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return made.svg


LEARNING = {
    "reward": "mean reward of a batch",
    "entropy": "entropy, nats a token",
    "loss": "loss",
    "grad_norm": "gradient norm",
    "clip_share": "share of clipped tokens",
    "kl_reference": "KL from the initial policy, nats a token",
    "same_version_mismatch": "gap engine to trainer, nats a token",
    "imitation_nll": "imitated successes, NLL, nats a token",
    "imitation_share": "share of imitated tokens",
}


def learning(inputs: ReportInputs) -> str | None:
    """Draw the optimiser's metrics, a small panel each."""
    left_out = set() if inputs.config.trainer.kl_beta else {"kl_reference"}
    known = [
        name for name in LEARNING if name not in left_out and any(name in row["metrics"] for row in inputs.trained)
    ]
    if not known:
        return None
    columns = min(3, len(known))
    rows = -(-len(known) // columns)
    with drawing(9.6, 1.9 * rows, rows=rows, columns=columns) as made:
        for axes, name in zip(made.axes, known, strict=False):
            points = [(r["train_step"], r["metrics"][name]) for r in inputs.trained if name in r["metrics"]]
            axes.plot([step for step, _ in points], [value for _, value in points], color=BLUE, lw=1.5)
            axes.set_title(LEARNING[name], loc="left", fontsize=10, color=INK)
            axes.locator_params(nbins=4)
        for axes in made.axes[len(known) :]:
            axes.set_visible(False)
    return made.svg


def outcomes(inputs: ReportInputs) -> str | None:
    """Draw the shares of outcomes of training episodes over time."""
    width = max(1, len(inputs.slices) // 40)
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for trajectory in inputs.progress.finished.values():
        if trajectory.purpose == "train":
            counts[trajectory.finished_ms // (SLICE_MS * width)][trajectory.outcome] += 1
    if not counts:
        return None
    numbers = sorted(counts)
    times = [minutes(inputs, (number + 0.5) * SLICE_MS * width) for number in numbers]
    with drawing(9.6, 2.5) as made:
        axes = made.axes[0]
        base = [0.0] * len(numbers)
        for kind, colour in OUTCOMES.items():
            shares = [counts[number][kind] / counts[number].total() for number in numbers]
            if any(shares):
                bar = SLICE_MS * width / 60_000
                axes.bar(times, shares, bottom=base, width=bar, color=colour, label=kind.replace("_", " "), lw=0)
                base = [low + share for low, share in zip(base, shares, strict=True)]
        axes.set(ylim=(0, 1), xlabel="minutes of training")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        made.figure.legend(loc="outside upper left", ncols=len(OUTCOMES))
    return made.svg


def phases(inputs: ReportInputs) -> str | None:
    """Draw the phases of the run on a time line."""
    done = [phase for phase in inputs.journal.phases if phase.ended_ms is not None]
    if not done:
        return None
    start = done[0].started_ms
    with drawing(9.6, 0.6 + 0.26 * len(done)) as made:
        axes = made.axes[0]
        for row, phase in enumerate(done):
            begin, length = (phase.started_ms - start) / 60_000, (phase.ended_ms or 0) - phase.started_ms
            colour = BLUE if phase.name == "circle" else GREEN if phase.name in ("before", "after") else GREY
            axes.barh(row, max(length / 60_000, 0.01), left=begin, height=0.66, color=colour)
            axes.text(begin + length / 60_000, row, f"  {length / 1000:.1f} s", va="center", color=MUTED, fontsize=9)
        axes.set_yticks(range(len(done)), [phase.name for phase in done], color=INK)
        axes.invert_yaxis()
        axes.margins(x=0.08)
        axes.set(xlabel="minutes since the run began")
        axes.grid(axis="y", visible=False)
    return made.svg


def shares(title: str, parts: dict[str, float], unit: str, width: float = 4.7) -> str | None:
    """Draw one stacked bar of what a whole is made of."""
    whole = sum(parts.values())
    if not whole:
        return None
    colours = [BLUE, AMBER, VIOLET, GREEN, TEAL, RED, GREY, "#5b6270", "#c98bdb"]
    with drawing(width, 1.25) as made:
        axes, left = made.axes[0], 0.0
        for (name, value), colour in zip(parts.items(), colours, strict=False):
            axes.barh(0, value, left=left, color=colour, height=0.5, label=f"{name} {value:,.3g}{unit}")
            left += value
        axes.set_axis_off()
        axes.set_xlim(0, whole)
        axes.set_title(title, loc="left", fontsize=10)
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(0, 0.12),
            ncols=4 if width < 6 else 8,
            fontsize=8,
            handlelength=0.8,
            columnspacing=1,
        )
    return made.svg
