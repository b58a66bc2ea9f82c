"""Demonstrations: the orders that ask for them, and the samples to imitate that their steps make. Without torch."""

import random
from collections.abc import Mapping, Sequence

import msgspec

from dart_streams import prompts
from dart_streams.tasks import Task
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder
from topics.values import MessagePart, Sampling


class SftSample(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to imitate: the turns before it, its text, and the encoded images of the turns by SHA-256."""

    turns: tuple[MessagePart, ...]
    answer: str
    images: Mapping[str, bytes]


def demonstration_orders(tasks: Sequence[Task], count: int, seed: int) -> list[RolloutOrder]:
    """Return orders for ``count`` demonstrations, each of another task, in an order drawn from ``seed``.

    Fewer than ``count`` if there are fewer ``tasks``: the same task shows the same thing twice.
    """
    chosen = random.Random(seed).sample(list(tasks), min(count, len(tasks)))
    return [
        RolloutOrder(
            order_id=f"demonstration-{seed}-{index}",
            group_id=f"demonstration-{seed}-{index}",
            group_size=1,
            sample=0,
            attempt=0,
            task_id=task.task_id,
            max_steps=task.max_steps,
            purpose="demonstration",
            sampling=Sampling(),
            after_version=0,
        )
        for index, task in enumerate(chosen)
    ]


def samples_of(
    observations: Sequence[Observation], images: Mapping[str, bytes], max_images: int, max_texts: int
) -> list[SftSample]:
    """Return one sample an action of a demonstration; ``observations`` are all its steps, in order."""
    samples = []
    for step, observation in enumerate(observations):
        if observation.taken is None or observation.taken.action is None:
            continue
        turns = prompts.turns(observations[:step], max_images, max_texts)
        shown = {turn.image.sha256: images[turn.image.sha256] for turn in turns if turn.image is not None}
        samples.append(SftSample(turns=tuple(turns), answer=observation.taken.action, images=shown))
    return samples
