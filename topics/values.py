"""Values that several events share, and the bounds of each field: a record outside them is refused when it is decoded.

The bounds are far beyond what any deployment needs. They keep a single record, of whatever producer, from making a
reader allocate, wait or count without end, or write a number that its store does not have.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=512)]
"""An id, or another name; a key of a record is one."""
Digest = Annotated[str, Meta(max_length=128)]
"""A digest in hex; empty where there was nothing to digest."""
Prose = Annotated[str, Meta(max_length=2**20)]
"""A text for people and policies: a record has no room for more."""
MOST_ROLLOUTS = 2**16
GroupSize = Annotated[int, Meta(ge=0, le=MOST_ROLLOUTS)]
"""Rollouts of a group, or the place of one within it."""
Attempt = Annotated[int, Meta(ge=0, le=10_000)]
Steps = Annotated[int, Meta(ge=0, le=100_000)]
"""Steps of an episode, or the place of one within it."""
Version = Annotated[int, Meta(ge=0, le=10**9)]
"""Of weights, of optimizer steps, of trainers' epochs."""
Count = Annotated[int, Meta(ge=0, le=10**12)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""The id of a token, or a place among tokens."""
Pixels = Annotated[int, Meta(ge=0, le=2**16)]
Partition = Annotated[int, Meta(ge=0, le=2**20)]
EpochMs = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Milliseconds since 1970, until the year 9999."""
Milliseconds = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""A duration; below 0 where two clocks disagree."""
Reward = Annotated[float, Meta(ge=0, le=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
"""A part of a whole."""
Real = Annotated[float, Meta(ge=-1e12, le=1e12)]
Measured = Annotated[float, Meta(ge=-1e300, le=1e300)]
"""Any finite number."""

Temperature = Annotated[float, Meta(ge=0, le=100)]
"""0 is greedy."""

Purpose = Literal["train", "eval", "demonstration"]
OutcomeKind = Literal[
    "success", "failure", "truncated", "invalid_action", "env_error", "policy_error", "lost", "cancelled"
]


class BlobRef(msgspec.Struct, frozen=True, kw_only=True):
    """A claim check: the bytes are in the store under their sha256 (hex); size in bytes, width and height in pixels."""

    sha256: Digest
    size: Count
    media_type: Name = "image/png"
    width: Pixels = 0
    height: Pixels = 0


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn. Requests carry no seed, so that a group stays diverse."""

    temperature: Temperature = 1.0
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    max_tokens: Token = 32

    @property
    def is_whole(self) -> bool:
        """Return whether tokens are drawn from the model's whole distribution, at its temperature.

        Otherwise an engine's log-probabilities are of the part that is left, and the trainer's are of the whole.
        """
        return self.temperature > 0 and self.top_p == 1


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens ``[start, end)`` of a generation were sampled by weight version ``version``."""

    version: Version
    start: Token
    end: Token


class MessagePart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a prompt: text or an image, never both. The order of turns is the order in the prompt.

    Parts of one role that follow each other are one message, but one that is ``separate`` begins a message of its own.
    """

    role: Literal["system", "user", "assistant"]
    text: Prose | None = None
    image: BlobRef | None = None
    separate: bool | msgspec.UnsetType = msgspec.UNSET
