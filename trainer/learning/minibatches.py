"""Minibatches of a step: shuffled sequences in equal parts, the same for any number of ranks. Pure.

Steps of a trajectory whose prompts extend each other stay together, since they are read in one pass.
"""

import bisect
from collections.abc import Sequence

import msgspec

from dart_streams import stateless_random
from trainer.data.samples import ReadyGroup, TrainingSample


def shuffle_keys(groups: Sequence[ReadyGroup], version: int) -> list[int]:
    """Return the shuffle keys of a rank's samples in the step from ``version``."""
    return [shuffle_key(item, version) for group in groups for item in group.samples]


def shuffle_key(item: TrainingSample, version: int) -> int:
    """Return a sample's stateless random key, so that a repeated step has the same minibatches."""
    return stateless_random.number("minibatch", version, item.group_id, item.trajectory_id, *item.window)


def split(groups: Sequence[ReadyGroup], keys: Sequence[int], count: int, version: int) -> list[list[ReadyGroup]]:
    """Return a rank's groups for each of ``count`` minibatches, fewer if ``keys`` of all ranks have fewer values."""
    ordered = sorted(keys)
    parts = min(count, len(ordered))
    starts = sorted({ordered[round(number * len(ordered) / parts)] for number in range(parts)})

    def place(item: TrainingSample) -> int:
        return bisect.bisect_right(starts, shuffle_key(item, version)) - 1

    return [
        [
            msgspec.structs.replace(group, samples=[item for item in group.samples if place(item) == part])
            for group in groups
        ]
        for part in range(len(starts))
    ]
