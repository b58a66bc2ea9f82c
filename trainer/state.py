"""What a training process is at one moment, but for the tensors: the small part of a checkpoint."""

import msgspec

from trainer.data.position import Position
from trainer.learning.sft_phase import SuccessMemory


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """One optimiser step as the store keeps it: what it was made of, and what came out. ``metrics`` are finite."""

    version: int
    epoch: int
    group_ids: list[str]
    trajectory_ids: list[str]
    metrics: dict[str, float]
    at_ms: int


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The weights are ``version``, made by ``train_step`` steps over the log up to ``position``.

    ``last`` is the newest step, so that a resumed trainer can write its row if the dead one did not come to it.
    ``memory`` is for supervised phases.
    """

    version: int = 0
    train_step: int = 0
    position: Position = Position()
    last: Trained | None = None
    memory: SuccessMemory = SuccessMemory()

    def after(self, position: Position, step: Trained, memory: SuccessMemory) -> "TrainerState":
        """Return the state after one more optimiser step."""
        return TrainerState(
            version=step.version, train_step=self.train_step + 1, position=position, last=step, memory=memory
        )
