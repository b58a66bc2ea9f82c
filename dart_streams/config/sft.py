"""Supervised fine-tuning before a run."""

from typing import Annotated

from msgspec import Meta

from dart_streams.config.section import AboveZero, Count, Optional, Positive, Share

HeldOut = Annotated[float, Meta(ge=0, le=0.5)]


class Sft(Optional, frozen=True):
    """Supervised fine-tuning before a run: ``dart-streams train --sft``. Other keys are those of ``[trainer]``."""

    epochs: Positive = 1
    """Passes over the data."""
    steps: Count = 0
    """Optimizer steps; 0: as many as ``epochs`` have."""
    batch: Positive = 32
    """Answers of an optimizer step, over all ranks."""
    learning_rate: AboveZero = 1e-5
    """AdamW's highest learning rate."""
    warmup: Share = 0.03
    """Share of the steps in which the learning rate rises; then it falls by a cosine to a tenth."""
    heldout: HeldOut = 0.05
    """Share of the trajectories that are not trained on, and measured before and after."""
    unusable: Share = 0.05
    """Largest share of trajectories that may be left out as unusable; each is reported."""
    checkpoint_every: Positive = 100
    """Steps between checkpoints; after a kill the same command repeats the steps since the last one."""

    def __post_init__(self) -> None:
        """Refuse a number of steps beside a number of epochs."""
        if self.steps and self.epochs > 1:
            raise ValueError(
                f"steps = {self.steps} and epochs = {self.epochs} both say how long to train: set one of them"
            )
