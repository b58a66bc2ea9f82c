"""Pretraining of the outcome model on what dispatch saw in recorded runs. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from dart_recipes.outcome_model.model import (
    AreaUnderCurve,
    Features,
    OutcomeModel,
    Outcomes,
    Training,
    area_under_curve,
    fit_weights,
    log_odds_of,
)
from dart_streams import stateless_random
from dart_streams.curation.hooks import TaskFinish
from dart_streams.errors import UserError
from topics.rollout_orders import RolloutOrder

FOLDS = 5
LATER = 0.3
"""The share of each run's examples, its last, that are held out by time."""
RESAMPLES = 400


class Example(NamedTuple):
    """An ended rollout: the features of its group when that was opened, and its outcome."""

    task_id: str
    group: str
    features: Features
    success: bool


def pretrain(runs: Sequence[Iterable[Any]]) -> OutcomeModel:
    """Return a model of several runs, each given as the events that dispatch's rules remembered.

    Raises UserError if one of both outcomes is missing.
    """
    examples = [examples_of(number, events) for number, events in enumerate(runs)]
    every = [example for run in examples for example in run]
    successes = sum(example.success for example in every)
    if not 0 < successes < len(every):
        raise UserError(f"{len(every)} rollouts with {successes} successes: a model needs successes and failures")
    earlier = [example for run in examples for example in run[: split_at(run)]]
    later = [example for run in examples for example in run[split_at(run) :]]
    training = Training(
        runs=len(examples),
        examples=len(every),
        successes=successes,
        digest=blake2b(msgspec.json.encode(every, order="sorted"), digest_size=16).hexdigest(),
        held_out=[
            estimate_area("other tasks", score_unseen(every)),
            estimate_area("other tasks, recent rate alone", score_rates(every)),
            estimate_area("later groups", score(fit(earlier), later)),
            estimate_area("later groups, recent rate alone", score_rates(later)),
        ],
    )
    return OutcomeModel(
        weights={name: round(value, 6) for name, value in sorted(fit(every).items())}, training=training
    )


def examples_of(run: int, events: Iterable[Any]) -> list[Example]:
    """Return the examples of a run, in the order of their ends."""
    memory, examples = Outcomes(), []
    for event in events:
        if isinstance(event, RolloutOrder):
            memory.open_group(event)
        elif isinstance(event, TaskFinish) and event.rewarded:
            features = memory.finish(event.task_id, event.success)
            examples.append(Example(event.task_id, f"{run}/{event.group}", features, event.success))
    return examples


def split_at(run: Sequence[Example]) -> int:
    """Return the number of examples of a run that are not held out by time."""
    return round(len(run) * (1 - LATER))


def fit(examples: Iterable[Example]) -> dict[str, float]:
    """Return the weights that fit examples."""
    return fit_weights([(example.features, example.success) for example in examples])


def score(weights: dict[str, float], examples: Iterable[Example]) -> list[tuple[Example, float]]:
    """Return examples with the log odds that a model gives them."""
    return [(example, log_odds_of(example.features, weights)) for example in examples]


def score_unseen(examples: Sequence[Example]) -> list[tuple[Example, float]]:
    """Return each example with the log odds of a model that was fitted without its task."""

    def fold_of(example: Example) -> int:
        return stateless_random.number("fold", example.task_id) % FOLDS

    scored = []
    for fold in range(FOLDS):
        held_out = [example for example in examples if fold_of(example) == fold]
        scored += score(fit(example for example in examples if fold_of(example) != fold), held_out)
    return scored


def score_rates(examples: Iterable[Example]) -> list[tuple[Example, float]]:
    """Return examples with the log odds of the task's recent outcomes, which needs no model."""
    return [(example, example.features["task"]) for example in examples]


def estimate_area(name: str, scored: Sequence[tuple[Example, float]]) -> AreaUnderCurve:
    """Return the area of scored examples, with an interval of whole groups drawn again (bootstrap)."""
    groups: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
    for example, odds in scored:
        groups[example.group].append((odds, example.success))
    names = sorted(groups)
    drawn = [draw_area(names, groups.__getitem__, number) for number in range(RESAMPLES if names else 0)]
    areas = sorted(area for area in drawn if area is not None)
    area = area_under_curve(one for group in groups.values() for one in group)
    bounds = [areas[int(share * (len(areas) - 1))] for share in (0.025, 0.975)] if areas else [None, None]
    area, low, high = (value if value is None else round(value, 3) for value in (area, *bounds))
    return AreaUnderCurve(name=name, area=area, low=low, high=high, examples=len(scored))


def draw_area(names: Sequence[str], group: Callable[[str], list[tuple[float, bool]]], number: int) -> float | None:
    """Return the area of as many groups as there are, drawn with replacement."""
    chosen = [names[stateless_random.number("group", number, draw) % len(names)] for draw in range(len(names))]
    return area_under_curve(one for name in chosen for one in group(name))
