"""The minibatches of a step: its sequences, shuffled, in parts of equal size. Pure, the same on any number of ranks."""

import bisect
from collections.abc import Sequence

import msgspec

from dart_streams import stateless_random
from trainer.data.samples import ReadyGroup, TrainingSample


def shuffle_keys(groups: Sequence[ReadyGroup], version: int) -> list[int]:
    """Return the shuffle key of each of a rank's samples in the step that starts from ``version``."""
    return [shuffle_key(item, version) for group in groups for item in group.samples]


def shuffle_key(item: TrainingSample, version: int) -> int:
    """Return a sample's place in the shuffled order: a random number of the step and the sample alone.

    So a step that is made again from the log has the same minibatches. Ids of trajectories differ from run to run.
    """
    return stateless_random.number("minibatch", version, item.group_id, item.trajectory_id, item.step)


def split(groups: Sequence[ReadyGroup], keys: Sequence[int], count: int, version: int) -> list[list[ReadyGroup]]:
    """Return a rank's groups once a minibatch, with just the samples of it, in their order.

    ``keys`` are those of all ranks, at least one: the minibatches are of equal size over all ranks, give or take one
    sequence, whichever rank has which. There are ``count`` of them, or as many as there are sequences if that is less.
    """
    ordered = sorted(set(keys))
    parts = min(count, len(ordered))
    starts = [ordered[round(number * len(ordered) / parts)] for number in range(parts)]

    def place(item: TrainingSample) -> int:
        return bisect.bisect_right(starts, shuffle_key(item, version)) - 1

    return [
        [
            msgspec.structs.replace(group, samples=[item for item in group.samples if place(item) == part])
            for group in groups
        ]
        for part in range(parts)
    ]
