"""Trainer state without tensors, first version of an incarnation, retention of versions. Pure."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from topics.trained import TrainedStep
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing
from trainer.data.consumer import Position
from trainer.data.successes import SuccessMemory


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """State in a checkpoint: ``version`` after ``train_step`` steps up to ``position``; ``last`` is the newest step.

    ``memories`` are those of the recipes, by name.
    """

    version: int = 0
    train_step: int = 0
    position: Position = Position()
    last: TrainedStep | None = None
    memory: SuccessMemory = SuccessMemory()
    memories: dict[str, Any] = {}

    def after(self, position: Position, step: TrainedStep, memory: SuccessMemory) -> "TrainerState":
        """Return the state after one more optimizer step."""
        return TrainerState(
            version=step.version,
            train_step=step.train_step,
            position=position,
            last=step,
            memory=memory,
            memories=self.memories,
        )


def oldest_needed(serving: Iterable[WeightsServing], alive: Collection[str]) -> float:
    """Return the oldest version that a live rollout worker serves or may be fetching; infinity without live workers."""
    return min((record.tried for record in serving if record.worker_id in alive), default=math.inf)


def asks_for_whole(newest: WeightVersion, serving: Iterable[WeightsServing], alive: Collection[str]) -> bool:
    """Return whether a live rollout worker failed to load a delta or adapter on the way to ``newest``."""
    if newest.kind == "full":
        return False
    full = newest.base[0].version if newest.base else newest.version
    failed = (record.failed_version for record in serving if record.worker_id in alive)
    return any(version is not None and version > full for version in failed)


def versions_to_keep(published: Sequence[WeightVersion], keep: int, oldest: float) -> list[WeightVersion]:
    """Return the ``published`` versions (oldest first) to keep: the newest ``keep`` and all from ``oldest`` on."""
    start = max(0, len(published) - keep)
    return [version for place, version in enumerate(published) if place >= start or version.version >= oldest]


def first_version(restored: int | None, newest: WeightVersion | None, same: bool) -> int:
    """Return the version number under which an incarnation announces its initial weights.

    ``restored`` is the checkpoint's version (None: initial weights), ``newest`` the newest announced version, and
    ``same`` whether the weights equal it. Equal weights keep that number. A checkpoint ahead of it keeps its own
    number. Any other weights get the next free number, so a number never names two sets of weights.
    """
    if newest is None:
        return restored or 0
    if same:
        return newest.version
    if restored is not None and restored > newest.version:
        return restored
    return newest.version + 1
