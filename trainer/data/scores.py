"""Scores of answer tokens from outside the trainer, such as another model's log-probabilities, and their record.

They are read with a group. What a step used is stored as one blob, which its event of ``trained`` names, so that the
step can be repeated without their source.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from trainer.data.samples import ReadyGroup, TrainingSample

MEDIA_TYPE = "application/json"


class ScoreRequest(NamedTuple):
    """Samples to score, and their screenshots by sha256; once ``stopped``, all may be left without scores."""

    samples: Sequence[TrainingSample]
    images: Mapping[str, bytes]
    stopped: Callable[[], bool]


Score = Callable[[ScoreRequest], "list[list[float] | None]"]
"""Returns one number a token of each sample's answer, None for a sample without scores."""


class StepScores(msgspec.Struct, frozen=True):
    """The scores of a trajectory's action ``step``, one a token of its answer."""

    trajectory_id: str
    step: int
    scores: list[float]


def add_scores(samples: Sequence[TrainingSample], scores: Sequence[list[float] | None]) -> list[TrainingSample]:
    """Return samples with their scores."""
    return [msgspec.structs.replace(item, scores=own) for item, own in zip(samples, scores, strict=True)]


def scores_in(groups: Iterable[ReadyGroup]) -> list[StepScores]:
    """Return all scores of groups."""
    return [
        StepScores(item.trajectory_id, item.step, item.scores)
        for group in groups
        for item in group.samples
        if item.scores is not None
    ]


def encode_scores(scores: Sequence[StepScores]) -> bytes:
    """Return scores as bytes, in an order that does not depend on ranks."""
    return msgspec.json.encode(sorted(scores, key=lambda own: (own.trajectory_id, own.step)))


def restore_scores(group: ReadyGroup, data: bytes) -> ReadyGroup:
    """Return a group with the recorded scores of its samples."""
    known = {(own.trajectory_id, own.step): own.scores for own in msgspec.json.decode(data, type=list[StepScores])}
    found = [known.get((item.trajectory_id, item.step)) for item in group.samples]
    return msgspec.structs.replace(group, samples=add_scores(group.samples, found))
