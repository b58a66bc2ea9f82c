"""A training process's state but for the tensors, the version it resumes under, and which versions stay. Pure."""

import math
from collections.abc import Collection, Iterable, Sequence

import msgspec

from topics.trained import TrainedStep
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing
from trainer.data.consumer import Position
from trainer.data.successes import SuccessMemory


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The small part of a checkpoint: weights ``version``, made by ``train_step`` steps over the log to ``position``.

    ``last`` is the newest step, so that a resumed trainer can publish it if the dead one did not come to it.
    ``memory`` is what the policy may imitate.
    """

    version: int = 0
    train_step: int = 0
    position: Position = Position()
    last: TrainedStep | None = None
    memory: SuccessMemory = SuccessMemory()

    def after(self, position: Position, step: TrainedStep, memory: SuccessMemory) -> "TrainerState":
        """Return the state after one more optimizer step."""
        return TrainerState(
            version=step.version, train_step=step.train_step, position=position, last=step, memory=memory
        )


def oldest_needed(serving: Iterable[WeightsServing], alive: Collection[str]) -> float:
    """Return the oldest version that a live rollout worker serves or may be fetching; infinity if there is no worker.

    A worker that serves version v, or has failed to load it, may be fetching any newer one. One that is not ``alive``
    takes the newest when it comes back.
    """
    return min((record.tried for record in serving if record.worker_id in alive), default=math.inf)


def asks_for_whole(newest: WeightVersion, serving: Iterable[WeightsServing], alive: Collection[str]) -> bool:
    """Return whether a live rollout worker could not load what leads from the newest full version to ``newest``."""
    if newest.kind == "full":
        return False
    full = newest.base[0].version if newest.base else newest.version
    failed = (record.failed_version for record in serving if record.worker_id in alive)
    return any(version is not None and version > full for version in failed)


def versions_to_keep(published: Sequence[WeightVersion], keep: int, oldest: float) -> list[WeightVersion]:
    """Return which of the ``published`` versions, the oldest first, stay: the newest ``keep``, and all from ``oldest``.

    What any of them is made from stays as well (:attr:`~topics.weights.WeightVersion.parts`), however old.
    """
    start = max(0, len(published) - keep)
    return [version for place, version in enumerate(published) if place >= start or version.version >= oldest]


def first_version(restored: int | None, newest: WeightVersion | None, same: bool) -> int:
    """Return the version under which an incarnation announces the weights it starts from.

    ``restored`` is the version of the checkpoint it goes on from, None with the initial weights; ``newest`` the newest
    announced before it; ``same`` is whether its weights are those of ``newest``, whose number they then keep. Otherwise
    it is the checkpoint's, if the trainer before died between checkpoint and announcement, or the next free number: a
    number never means two sets of weights.
    """
    if newest is None:
        return restored or 0
    if same:
        return newest.version
    if restored is not None and restored > newest.version:
        return restored
    return newest.version + 1
