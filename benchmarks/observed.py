"""A workload from a recorded run: the times that its desktops, engine and optimiser took. Pure.

Each kind of time becomes quantiles. Generation keeps its times as they were, so the load under which they were taken
is in them. An episode's reset is from the beginning of its trajectory to its first screen; the evaluator's time is from
the last screen to the record of the end, and includes the writing of the last screenshot.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.logged import began_ms
from dart_streams.config.workload import PAGE
from dart_streams.console.runs.run_log import ObservationHeader
from dart_streams.console.runs.run_state import RunState
from dart_streams.errors import UserError
from topics import observations, trained, weights_serving

READ = (observations.TOPIC, trained.TOPIC, weights_serving.TOPIC)
"""The topics that a workload is made of."""
POINTS = 21
"""Quantiles of a distribution, the smallest and the largest value included."""
TRAINING = ("train_ms", "checkpoint_ms", "publish_ms")


class Times(NamedTuple):
    """What was seen, in seconds of the recorded run's clock; ``steps`` and ``won`` have a list a task."""

    resets: list[float]
    settles: list[float]
    evaluations: list[float]
    generations: list[float]
    steps: dict[str, list[int]]
    won: dict[str, list[bool]]
    faults: int


def times(state: RunState) -> Times:
    """Gather the times of training episodes of a run whose steps were kept."""
    seen = Times([], [], [], [], defaultdict(list), defaultdict(list), 0)
    faults = 0
    for record in (record for steps in state.observations.values() for record in steps.values()):
        event: ObservationHeader = record.event
        if event.order.purpose != "train":
            continue
        if event.step == 0 and event.end is None:
            seen.resets.append((event.at_ms - began_ms(event.trajectory_id)) / 1000)
        if event.taken is not None:
            seen.settles.append(event.taken.execute_ms / 1000)
            seen.generations.append(event.taken.generate_ms / 1000)
        if event.end is not None and event.end.reward is not None:
            seen.evaluations.append((record.metadata.at_ms - event.at_ms) / 1000)
            seen.steps[event.order.task_id].append(max(1, event.step))
            seen.won[event.order.task_id].append(event.end.kind == "success")
        faults += event.end is not None and event.end.kind == "env_error"
    return seen._replace(faults=faults)


def tables(
    state: RunState, seen: Times, call_s: float, recorded_scale: float = 1.0, time_scale: float = 1.0
) -> dict[str, Any]:
    """Return the configuration of a workload; ``recorded_scale`` is how fast the recorded run was.

    Raises
    ------
    UserError
        If no rewarded training episode was recorded.
    """
    if not seen.steps:
        raise UserError("no rewarded training episode in this run: nothing to take a workload from")
    episodes = sum(map(len, seen.steps.values()))
    rates = [statistics.mean(won) for won in seen.won.values()]
    optimiser = [sum(step.metrics.get(name, 0.0) for name in TRAINING) / 1000 for step in state.trained.values()]
    switches = [event.pause_ms / 1000 for event in state.served.values() if event.pause_ms is not None]

    def spread(values: Sequence[float]) -> dict[str, list[float]]:
        return {"quantiles": [round(value * recorded_scale, 4) for value in quantiles(values)]}

    return {
        "tasks": {"file": "tasks.toml"},
        "env": {"backend": "simulated"},
        "rollout": {"engine": "scripted", "scripted": {"success_rate": 1.0}},
        "workload": {
            "time_scale": time_scale,
            "steps_sigma": round(scatter(seen.steps), 4),
            "most_steps": max(max(counts) for counts in seen.steps.values()),
            "success": [round(min(rates), 4), round(max(rates), 4)],
            "hang_share": round(seen.faults / (episodes + seen.faults), 5),
            "call_s": call_s * recorded_scale,
            "reset_s": spread(seen.resets),
            "settle_s": spread(seen.settles),
            "evaluate_s": spread(seen.evaluations),
            "generation": {"prefill_s": 0.0, "token_s": 1.0, "load": 0.0, "tokens": spread(seen.generations)},
            "switch_s": round(statistics.median(switches) * recorded_scale, 4) if switches else 0.0,
        }
        | ({"optimiser_s": spread(optimiser)} if optimiser else {}),
    }


def pages(seen: Times) -> dict[str, Any]:
    """Return the task set: a page for each typical number of steps, with as many tasks as had it."""
    typical = Counter(round(statistics.median(counts)) for counts in seen.steps.values())
    most = max(max(counts) for counts in seen.steps.values())
    return {
        "pages": [
            {
                "environment": "simulated",
                "page": f"{PAGE}{steps}",
                "max_steps": most,
                "train_seeds": [0, tasks],
                "heldout_seeds": [1_000_000, 1_000_001],
            }
            for steps, tasks in sorted(typical.items())
        ]
    }


def quantiles(values: Sequence[float]) -> list[float]:
    """Return evenly spaced quantiles, the smallest and the largest value included."""
    ordered = sorted(max(0.0, value) for value in values)
    if len(ordered) < 2:
        return ordered or [0.0]
    inner = statistics.quantiles(ordered, n=POINTS - 1, method="inclusive")
    return [ordered[0], *(min(max(value, ordered[0]), ordered[-1]) for value in inner), ordered[-1]]


def scatter(steps: dict[str, list[int]]) -> float:
    """Return how much episodes vary around their task's median: the deviation of the logarithm."""
    ratios = [math.log(count / statistics.median(counts)) for counts in steps.values() for count in counts]
    return statistics.pstdev(ratios) if len(ratios) > 1 else 0.0
