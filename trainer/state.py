"""What a training process is at one moment, but for the tensors: the small part of a checkpoint."""

import msgspec

from topics.trained import TrainedStep
from trainer.data.position import Position
from trainer.learning.sft_phase import SuccessMemory


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The weights are ``version``, made by ``train_step`` steps over the log up to ``position``.

    ``last`` is the newest step, so that a resumed trainer can publish it if the dead one did not come to it.
    ``memory`` is for supervised phases.
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
