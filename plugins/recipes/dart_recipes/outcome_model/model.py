"""The outcome model: the probability of a task's success, from what is known before it is played. Pure.

It is a logistic regression over named features. A feature that the model has no weight for counts nothing.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from dart_streams.config.tasks import page_of
from dart_streams.portable_math import exp_of, log_of, sum_in_order
from topics.rollout_orders import RolloutOrder

WINDOW = 16
"""Recent finishes behind a rate."""
STEPS = 400
"""Gradient steps of a fit."""
FORMAT = 1

Features = dict[str, float]


class AreaUnderCurve(msgspec.Struct, frozen=True, kw_only=True):
    """An area under the ROC curve with its 95 % interval, over ``examples``; None where only one outcome occurs."""

    name: str
    area: float | None
    low: float | None
    high: float | None
    examples: int


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """What a model was trained on, with a ``digest`` of all examples; ``held_out`` has its areas on others."""

    runs: int
    examples: int
    successes: int
    digest: str
    held_out: list[AreaUnderCurve]


class OutcomeModel(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a model's file: a weight for each feature."""

    format: int = FORMAT
    weights: dict[str, float] = {}
    training: Training | None = None

    def report(self) -> list[AreaUnderCurve]:
        """Return the table that ``dart-streams data pretrain`` prints."""
        return self.training.held_out if self.training else []


class Recent(msgspec.Struct):
    """Recent outcomes (true for a success), oldest first: by task, by page, and of all under the empty name."""

    outcomes: dict[str, list[bool]] = {}

    def add(self, task_id: str, success: bool) -> None:
        """Add an outcome."""
        for name in (task_id, page_of(task_id), ""):
            outcomes = self.outcomes.setdefault(name, [])
            outcomes.append(success)
            del outcomes[:-WINDOW]

    def log_odds(self, name: str) -> float:
        """Return the log odds of a success among recent outcomes, add-one smoothed; 0 without any."""
        outcomes = self.outcomes.get(name, ())
        return log_of((sum(outcomes) + 1) / (len(outcomes) - sum(outcomes) + 1))


def describe_task(task_id: str, max_steps: int, recent: Recent) -> Features:
    """Return the features of a task's next episode, of at most ``max_steps`` steps."""
    page = page_of(task_id)
    features = {
        "bias": 1.0,
        "task": recent.log_odds(task_id),
        "siblings": recent.log_odds(page),
        "run": recent.log_odds(""),
        "tries": len(recent.outcomes.get(task_id, ())) / WINDOW,
        "steps": log_of(1 + max_steps) / log_of(16),
        f"page {page}": 1.0,
    }
    return features | {f"word {word}": 1.0 for word in re.findall("[a-z0-9]+", page.lower())}


class Opened(msgspec.Struct):
    """The features of a task's newest group when it was opened."""

    group_id: str
    features: Features


class Outcomes(msgspec.Struct):
    """Recent outcomes, each task's newest open group, and the ``change`` of each weight since the run began."""

    recent: Recent = msgspec.field(default_factory=Recent)
    opened: dict[str, Opened] = {}
    change: dict[str, float] = {}

    def open_group(self, order: RolloutOrder) -> None:
        """Note what is known of a task as its group is opened, at its first order."""
        known = self.opened.get(order.task_id)
        if known is None or known.group_id != order.group_id:
            features = describe_task(order.task_id, order.max_steps, self.recent)
            self.opened[order.task_id] = Opened(order.group_id, features)

    def finish(self, task_id: str, success: bool, ends_group: bool = False) -> Features:
        """Note a task's outcome; return the features of its group."""
        self.recent.add(task_id, success)
        opened = self.opened.pop(task_id, None) if ends_group else self.opened.get(task_id)
        return opened.features if opened else {}


def log_odds_of(features: Features, *weights: Mapping[str, float]) -> float:
    """Return the log odds that a model, the sum of several ``weights``, gives to a success."""
    return sum_in_order(value * each.get(name, 0.0) for name, value in features.items() for each in weights)


def success_probability(
    features: Features, *weights: Mapping[str, float], power: Callable[[float], float] = exp_of
) -> float:
    """Return the probability of a success; log odds beyond 30 count as 30. ``power`` is the exponential function."""
    return 1.0 / (1.0 + power(-max(-30.0, min(30.0, log_odds_of(features, *weights)))))


def fit_weights(examples: Sequence[tuple[Features, bool]], penalty: float = 1.0) -> dict[str, float]:
    """Return the weights of the smallest penalized log loss, by gradient descent from 0.

    The loss is the sum over the examples and half the ``penalty`` x the squared weights, the bias excepted. The step is
    the inverse of the bound of its curvature.
    """
    bound = 0.25 * sum_in_order(value * value for features, _ in examples for value in features.values()) + penalty
    frequent = {name: 0.0 for features, _ in examples for name in features}
    weights, speed = dict(frequent), dict(frequent)
    for step in range(STEPS):
        # Nesterov's momentum: hundreds of plain steps would still be far from the minimum.
        pull = step / (step + 3)
        ahead = {name: weight + pull * speed[name] for name, weight in weights.items()}
        slope = {name: 0.0 if name == "bias" else penalty * weight for name, weight in ahead.items()}
        for features, success in examples:
            # A fit is no decision: the model's file is one, by its digest.
            error = success_probability(features, ahead, power=math.exp) - success
            for name, value in features.items():
                slope[name] += error * value
        moved = {name: ahead[name] - slope[name] / bound for name in weights}
        speed = {name: moved[name] - weights[name] for name in weights}
        weights = moved
    return weights


def area_under_curve(scored: Iterable[tuple[float, bool]]) -> float | None:
    """Return the probability that a success has a higher score than a failure, ties half; None without both."""
    won = all_successes = failures = 0.0
    for _, tied in groupby(sorted(scored), key=itemgetter(0)):
        outcomes = [success for _, success in tied]
        successes, lost = sum(outcomes), len(outcomes) - sum(outcomes)
        won += successes * (failures + lost / 2)
        all_successes += successes
        failures += lost
    return won / (all_successes * failures) if all_successes and failures else None
