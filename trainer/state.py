"""A training process's state but for the tensors, the version it resumes under, and which versions stay. Pure."""

import math
from collections.abc import Collection, Iterable

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
        """Return the state after one more optimiser step."""
        return TrainerState(
            version=step.version, train_step=step.train_step, position=position, last=step, memory=memory
        )


def needed_from(serving: Iterable[WeightsServing], alive: Collection[str]) -> float:
    """Return the oldest version that a live rollout worker serves or may be fetching; infinity if there is no worker.

    A worker that serves version v, or has failed to load it, may be fetching any newer one. One that is not ``alive``
    takes the newest when it comes back.
    """
    return min((record.tried for record in serving if record.worker_id in alive), default=math.inf)


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
