"""Figures of a run with corrections, from the fold of its log. Pure."""

import statistics
from collections.abc import Sequence
from typing import Any

from console.runs import feedback
from console.runs.run_state import RunState
from topics.outcomes import is_success
from topics.trajectories import Trajectory

WINDOW = 40
"""Rollouts of the hard page over which success is the mean."""
AIM = 0.5


def served_after_s(state: RunState) -> list[float]:
    """Return the seconds from each correction to the first served version that trained on it, in the log's order.

    Both times are of this machine's clock: the correction's, and the rollout worker's.
    """
    found = []
    for row in feedback.feedback_rows(state):
        if row.kind == "correction" and row.version is not None:
            times = [one.since_ms for (version, _), one in state.served.items() if version >= row.version]
            found += [(min(times) - row.at_ms) / 1000] if times else []
    return found


def rollouts_of(state: RunState, page: str) -> list[Trajectory]:
    """Return the training rollouts of a page that have a reward, oldest first."""
    every = [one for one in state.finished.values() if one.purpose == "train" and one.reward is not None]
    return sorted((one for one in every if one.task_id.startswith(f"miniwob/{page}#")), key=lambda one: one.finished_ms)


def success_curve(rollouts: Sequence[Trajectory], window: int = WINDOW) -> list[tuple[int, float]]:
    """Return the time (epoch ms) and the mean success of each full window of consecutive rollouts."""
    won = [is_success(one.reward or 0.0) for one in rollouts]
    ends = range(window, len(rollouts) + 1)
    return [(rollouts[end - 1].finished_ms, sum(won[end - window : end]) / window) for end in ends]


def lift_figures(state: RunState, page: str) -> dict[str, Any]:
    """Return when a page's success in training reached the aim: after how many corrections, rollouts and steps."""
    rollouts = rollouts_of(state, page)
    curve = success_curve(rollouts)
    given = sorted(one.at_ms for one in state.feedback.values())
    reached = next((at_ms for at_ms, rate in curve if rate >= AIM), None)
    until = {
        "corrections": given,
        "rollouts": [one.finished_ms for one in rollouts],
        "train_steps": [one.at_ms for one in state.trained.values()],
    }
    return {
        "corrections_given": len(given),
        "rollouts_of_page": len(rollouts),
        **{
            f"{name}_until_half": None if reached is None else sum(at_ms <= reached for at_ms in times)
            for name, times in until.items()
        },
        "training_success_first": curve[0][1] if curve else None,
        "training_success_last": curve[-1][1] if curve else None,
        "training_success_best": max((rate for _, rate in curve), default=None),
    }


def latency_figures(state: RunState) -> dict[str, Any]:
    """Return the quantiles of the seconds from a correction to the first served version that trained on it."""
    times = sorted(served_after_s(state))
    if not times:
        return {"corrections_served": 0}
    return {
        "corrections_served": len(times),
        "seconds_to_served": [round(one, 1) for one in times],
        "seconds_to_served_p50": round(statistics.median(times), 1),
        "seconds_to_served_max": round(times[-1], 1),
    }
