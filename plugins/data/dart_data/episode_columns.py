"""Columns of a data set of episodes, in every file format.

An episode of ``n + 1`` observations has ``n`` steps: the screen of observation ``k`` and the answer to it. Layout
``step`` has a row for each step, with the policy's prompt, and layout ``trajectory`` one row for all of them.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from topics.observations import Observation
from topics.values import OfferedCall, OutcomeKind, Purpose, VersionSpan

Layout = Literal["step", "trajectory"]


class ImageCell(msgspec.Struct, frozen=True):
    """An image as Hugging Face's ``datasets`` stores it: the bytes of its file, or its path."""

    bytes: bytes | None
    path: str | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message; the n-th part of type ``image`` refers to the n-th of the row's ``images``."""

    type: Literal["text", "image"]
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a conversation in the form that chat templates take."""

    role: Literal["system", "user", "assistant"]
    content: list[ContentPart]


class EpisodeColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of both layouts, the same in every row of an episode; times are epoch milliseconds.

    ``version_min`` and ``version_max`` are null where no token was generated. ``train_steps`` are the optimizer steps
    that trained on the episode. ``trajectory_advantage`` is null if the episode's group was not curated.
    """

    run: str
    trajectory_id: str
    task_id: str
    instruction: str
    outcome: OutcomeKind
    reward: float | None
    reason: str
    steps: int
    purpose: Purpose
    version_min: int | None
    version_max: int | None
    trajectory_advantage: float | None
    train_steps: list[int]
    group_id: str
    order_id: str
    group_size: int
    sample: int
    attempt: int
    max_steps: int
    temperature: float
    top_p: float
    max_tokens: int
    after_version: int
    env_host: str
    finished_ms: int
    calls: list[OfferedCall] = []


class StepColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a step; ``step`` counts from 0.

    ``screen`` is the index in the row's ``images`` of the screen it acts on, null if there was none. ``text`` is null
    if the policy did not answer, and ``action`` if the answer did not parse. ``tokens``, ``logprobs`` (nats) and
    ``entropies`` (nats) have one entry a generated token; they are empty in a demonstration. ``advantage`` is null
    where the step was not ``selected`` for training. ``recorded_from`` is the trajectory of a recorded action that was
    executed in place of the policy's; null, as in rows of before this column, where the policy acted. So is
    ``take_over``, by which a person acted in its place. ``returned`` is the text that calls of the action returned,
    mostly empty.
    """

    step: int
    screen: int | None
    text: str | None
    action: str | None
    advantage: float | None
    selected: bool
    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    versions: list[VersionSpan]
    request_id: str
    prompt_sha: str
    queue_ms: float
    generate_ms: float
    execute_ms: float
    recorded_from: str | None = None
    take_over: str | None = None
    returned: str = ""
    at_ms: int


class StepMedia(msgspec.Struct, frozen=True, kw_only=True):
    """Further columns of layout ``step``: the prompt and its answer, and after the last step the last screen."""

    images: list[ImageCell]
    messages: list[ChatMessage]
    last_screen: ImageCell | None


class TrajectoryMedia(msgspec.Struct, frozen=True, kw_only=True):
    """Further columns of layout ``trajectory``: the whole conversation, all screens, and the steps."""

    images: list[ImageCell]
    messages: list[ChatMessage]
    step_data: list[StepColumns]
    last_screen: int | None


ROWS: dict[Layout, tuple[type[msgspec.Struct], ...]] = {
    "step": (EpisodeColumns, StepColumns, StepMedia),
    "trajectory": (EpisodeColumns, TrajectoryMedia),
}
"""Structs with the columns of each layout."""


class RecordedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """An episode that has ended: observations in order, and bytes of their screens by sha256."""

    observations: list[Observation]
    images: dict[str, bytes]


class InvalidRow(Exception):
    """The rows do not make an episode."""


Progress = Callable[[int], None]
"""Called with the number of episodes done."""
