"""Settings of C3PO (Ring-lite, arXiv 2506.14731)."""

from typing import ClassVar

from dart_streams.config.section import Optional, Positive


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.ring-lite]``."""

    counts_tokens: ClassVar[bool] = True
    """A step may take as many groups as dispatch opens ahead."""
    tokens_per_step: Positive = 1000
    """Answer tokens of a step, which drops the surplus to within one answer. Dispatch admits groups by
    ``trainer.groups_per_step`` as without the recipe."""
