"""The columns of a data set of episodes, declared here, once, for every file format; and the episode itself.

An episode of ``n + 1`` observations has ``n`` steps: the screen of observation ``k`` and what was answered to it. Of
the two layouts ``step`` has a row for each step, with the prompt that the policy was shown, and ``trajectory`` one row
for all of them.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from topics.observations import Observation
from topics.values import OutcomeKind, Purpose, VersionSpan

Layout = Literal["step", "trajectory"]


class ImageCell(msgspec.Struct, frozen=True):
    """An image as Hugging Face's ``datasets`` stores it: the bytes of its file, or where that is."""

    bytes: bytes | None
    path: str | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message. The n-th part of type ``image`` of a row stands for the n-th of the row's ``images``."""

    type: Literal["text", "image"]
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant"]
    content: list[ContentPart]


class EpisodeColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of both layouts, the same in every row of an episode; times are epoch milliseconds.

    ``steps`` counts the episode's steps; ``version_min`` and ``version_max`` are null where no token was generated;
    ``train_steps`` are the optimizer steps that were trained on it. A ``trajectory_advantage`` is that in the episode's
    own group, null if the group was not curated.
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


class StepColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a step; ``step`` counts from 0.

    ``screen`` is the index in the row's ``images`` of the screen it acts on, null if there was none. ``text`` is null
    if the policy did not answer, and ``action`` if the answer did not parse. ``tokens``, ``logprobs`` (nats) and
    ``entropies`` (nats) have one entry a generated token; they are empty in a demonstration. ``advantage`` is null
    where the step was not ``selected`` for training.
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
    at_ms: int


class StepMedia(msgspec.Struct, frozen=True, kw_only=True):
    """What a row of layout ``step`` has besides: the prompt and its answer, and after the last step the last screen."""

    images: list[ImageCell]
    messages: list[ChatMessage]
    last_screen: ImageCell | None


class TrajectoryMedia(msgspec.Struct, frozen=True, kw_only=True):
    """What a row of layout ``trajectory`` has besides: the whole conversation, all its screens, and the steps."""

    images: list[ImageCell]
    messages: list[ChatMessage]
    step_data: list[StepColumns]
    last_screen: int | None


ROWS: dict[Layout, tuple[type[msgspec.Struct], ...]] = {
    "step": (EpisodeColumns, StepColumns, StepMedia),
    "trajectory": (EpisodeColumns, TrajectoryMedia),
}
"""The structs that the columns of each layout come from."""


class CurationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an episode: its advantage, those of its ``selected`` steps, and who trained on it."""

    advantage: float | None = None
    step_advantages: dict[int, float] = {}
    train_steps: list[int] = []


class RecordedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """An episode that has ended: its observations in order, and the bytes of their screens by sha256."""

    observations: list[Observation]
    images: dict[str, bytes]


class InvalidRow(Exception):
    """Rows that make no episode; the text says what is wrong."""


Progress = Callable[[int], None]
"""Called with the number of episodes done."""
