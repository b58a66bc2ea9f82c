"""Plots of a comparison (SVG): bars of each metric, and a timeline of slots for each mode."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.modes import Mode
from benchmarks.utilization import Account, SlotActivity
from console.views.plots import AMBER, BLUE, GREEN, GREY, RED, TEAL, VIOLET, draw_svg

COLORS = (GREY, AMBER, TEAL, VIOLET, BLUE)
BARS = {
    "env_utilisation": "env utilisation",
    "rollout_utilisation": "rollout utilisation",
    "actions_per_min": "actions / min",
    "trained_steps_per_min": "trained steps / min",
}
STATES: dict[SlotActivity, str] = {"reset": AMBER, "wait": BLUE, "step": GREEN, "evaluate": VIOLET, "hang": RED}
LABELS: dict[SlotActivity, str] = {
    "reset": "reset",
    "wait": "waits for the policy",
    "step": "step",
    "evaluate": "evaluator",
    "hang": "hangs",
}


MAX_SLOTS = 32
"""Maximum number of slots drawn."""
PICTURE_S = 1800.0
"""Simulated seconds drawn of each mode."""


def draw(
    comparison: dict[str, Any],
    accounts: Mapping[Mode, Account],
    plot: Path | None,
    picture: Path | None,
    start: float,
) -> None:
    """Write the requested plots."""
    if plot is not None:
        plot.write_text(draw_bars(comparison))
    if picture is not None:
        in_order = {mode: accounts[mode] for mode in comparison["modes"]}
        last = max((end for account in in_order.values() for _, end in account.episodes), default=start)
        picture.write_text(draw_timeline(in_order, start, min(max(last, start + 60), start + PICTURE_S)))


def draw_bars(comparison: dict[str, Any]) -> str:
    """Draw one panel a metric with a bar a mode."""
    names = list(comparison["modes"])
    with draw_svg(12.0, 3.0, columns=len(BARS)) as made:
        for axes, (name, label) in zip(made.axes, BARS.items(), strict=True):
            values = [comparison["modes"][mode][name] for mode in names]
            placed = axes.bar(names, values, color=COLORS[: len(names)])
            axes.bar_label(placed, [f"{value:.0%}" if name.endswith("tion") else f"{value:.0f}" for value in values])
            axes.set_title(label)
            axes.set_xticks(range(len(names)), names, rotation=20)
    return made.svg


def draw_timeline(accounts: Mapping[str, Account], start: float, end: float, most_slots: int = MAX_SLOTS) -> str:
    """Draw the activity of slots between two times (seconds), one panel a mode; white is idle, lines are versions."""
    with draw_svg(12.0, 2.2 * len(accounts), rows=len(accounts)) as made:
        for axes, (mode, account) in zip(made.axes, accounts.items(), strict=True):
            for state, color in STATES.items():
                axes.barh([0], [0], color=color, label=LABELS[state])
                for slot, times in state_spans(account, state, start, end, most_slots).items():
                    axes.broken_barh(times, (slot - 0.45, 0.9), facecolors=color, linewidth=0, rasterized=True)
            for step in account.trained:
                if start <= step.at <= end:
                    axes.axvline((step.at - start) / 60, color=GREY, linewidth=1)
            axes.set_xlim(0, (end - start) / 60)
            axes.set_ylim(-0.5, min(account.slots, most_slots) - 0.5)
            axes.set_ylabel(f"{mode}\nslot")
            axes.grid(visible=False)
        made.axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=len(STATES))
        made.axes[-1].set_xlabel("minutes of the desktops' time")
    return made.svg


def state_spans(
    account: Account, state: SlotActivity, start: float, end: float, most_slots: int
) -> dict[int, list[tuple[float, float]]]:
    """Return the spans of a state by slot: (start, length), in minutes since ``start``."""
    found: dict[int, list[tuple[float, float]]] = {}
    for span in account.spans:
        if span.state == state and span.slot < most_slots and span.end > start and span.start < end:
            found.setdefault(span.slot, []).append(((span.start - start) / 60, (span.end - span.start) / 60))
    return found
