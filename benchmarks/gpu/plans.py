"""What is measured: models, and the windows and kinds of rows of each."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.multi_turn import trajectories
from trainer.data.rows import RowKinds

WINDOWS: Mapping[str, dict[str, int]] = {
    "sliding 5": trajectories.WINDOWS["sliding"],
    "blocks 3 to 7": trajectories.WINDOWS["blocks"],
    "sliding 3": {"max_images": 3, "max_texts": 2},
    "blocks 2 to 4": {"max_images": 4, "min_images": 2, "max_texts": 3, "min_texts": 1},
    "sliding 1": {"max_images": 1, "max_texts": 0},
}
"""Bounds of ``[policy]``. Windows of blocks have the mean number of screenshots of the sliding one before them."""
ROW_KINDS: Mapping[str, RowKinds] = {"one step": RowKinds(), "several steps": RowKinds(extended=True)}
"""Kinds of rows by what one row has."""


class Case(NamedTuple):
    """One optimizer step on the first ``steps`` of the trajectory."""

    window: str
    row: str
    steps: int
    recompute: bool = True


class Plan(NamedTuple):
    """A model of :data:`~benchmarks.gpu.models.MODELS`, trainer settings, a screenshot's size, and cases in order."""

    model: str
    trainer: dict[str, Any]
    screen: tuple[int, int]
    cases: tuple[Case, ...]


LORA: dict[str, Any] = {"publish": {"dtype": "bfloat16"}, "lora": {"rank": 16, "alpha": 32}}
FULL: dict[str, Any] = {"publish": {"dtype": "bfloat16", "full_every": 10}}
DESKTOP = (1932, 1092)
"""2,691 tokens."""
SMALL = (168, 112)
"""24 tokens."""
TINY = (
    Case("blocks 3 to 7", "several steps", 8),
    Case("blocks 3 to 7", "one step", 8),
    Case("sliding 5", "one step", 8),
    Case("sliding 1", "one step", 2, recompute=False),
)
PLANS: Mapping[str, Plan] = {
    "tiny-lora": Plan("tiny", LORA, SMALL, TINY),
    "tiny-full": Plan("tiny", FULL, SMALL, TINY),
    "7b-lora": Plan(
        "7b",
        LORA,
        DESKTOP,
        (
            Case("blocks 3 to 7", "several steps", 30),
            Case("blocks 3 to 7", "several steps", 10),
            Case("blocks 3 to 7", "one step", 10),
            Case("sliding 5", "one step", 10),
            Case("sliding 3", "one step", 4, recompute=False),
            Case("blocks 2 to 4", "several steps", 4, recompute=False),
            Case("blocks 2 to 4", "several steps", 4),
            Case("sliding 5", "one step", 30),
        ),
    ),
    "3b-full": Plan(
        "3b",
        FULL,
        DESKTOP,
        (
            Case("blocks 3 to 7", "several steps", 7),
            Case("blocks 3 to 7", "one step", 7),
            Case("sliding 5", "one step", 7),
            Case("sliding 1", "one step", 3, recompute=False),
            Case("sliding 1", "one step", 3),
        ),
    ),
}
"""Plans by name; the tiny ones run on a CPU."""
