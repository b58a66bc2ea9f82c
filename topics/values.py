"""Values that several events share, and the bounds of their fields. Decoding refuses records outside the bounds.

The bounds exceed the needs of any deployment. They keep a garbage record from making a reader allocate, wait or count
without end, or write a number that its store cannot hold.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

HEX = r"^[0-9a-f]*$(?!\n)"
"""Without the lookahead, Python's ``$`` admits a newline at the end."""
IN_A_NAME = r"^(?!/|\.\.?(/|$)|.*/(/|\.\.?(/|$)))[^\x00-\x1f\x7f]*$(?!\n)"
"""No control characters, no slash at the start, nothing empty, ``.`` or ``..`` between slashes: so a path with it stays
below its folder."""
MOST_NAME = 512
Name = Annotated[str, Meta(min_length=1, max_length=MOST_NAME, pattern=IN_A_NAME)]
"""An id or another name, such as the key of a record."""
NoName = Annotated[str, Meta(max_length=MOST_NAME, pattern=IN_A_NAME)]
"""A name, or empty."""
Digest = Annotated[str, Meta(max_length=128, pattern=HEX)]
"""A digest in hex; empty without content."""
ScreenKey = Annotated[str, Meta(max_length=16, pattern=HEX)]
"""The first 16 hex digits of a screenshot's sha256: equal for equal screens. Empty without a screenshot."""
Prose = Annotated[str, Meta(max_length=2**20)]
"""A text for people and policies; records have no room for longer ones."""
MOST_EXCERPT = 500
Excerpt = Annotated[str, Meta(max_length=MOST_EXCERPT)]
"""The beginning of a text."""
MOST_ROLLOUTS = 2**16
GroupSize = Annotated[int, Meta(ge=0, le=MOST_ROLLOUTS)]
"""A number of rollouts of a group, or an index among them."""
Attempt = Annotated[int, Meta(ge=0, le=10_000)]
Steps = Annotated[int, Meta(ge=0, le=100_000)]
"""A number of steps of an episode, or an index among them."""
Version = Annotated[int, Meta(ge=0, le=10**9)]
"""A number of a weight version, an optimizer step or a trainer epoch."""
Count = Annotated[int, Meta(ge=0, le=10**12)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""The id of a token, or an index among tokens."""
ActionName = Annotated[str, Meta(max_length=32)]
Coordinate = Annotated[int, Meta(ge=0, le=10**6)]
"""Pixels from the left or the top."""
Pixels = Annotated[int, Meta(ge=0, le=2**16)]
Partition = Annotated[int, Meta(ge=0, le=2**20)]
LAST_MS = 253_402_300_799_999
EpochMs = Annotated[int, Meta(ge=0, le=LAST_MS)]
"""Milliseconds since 1970, until the year 9999."""
Milliseconds = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""A duration; negative where two clocks disagree."""
LeaseMs = Annotated[int, Meta(ge=100, le=3_600_000)]
"""A time without a sign of life."""
Reward = Annotated[float, Meta(ge=0, le=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
"""A part of a whole."""
Real = Annotated[float, Meta(ge=-1e12, le=1e12)]
Measured = Annotated[float, Meta(ge=-1e300, le=1e300)]
"""Any finite number."""

Temperature = Annotated[float, Meta(ge=0, le=100)]
"""0 is greedy."""
LEAST_TEMPERATURE = 0.01
"""Engines raise lower ones to it."""

Purpose = Literal["train", "eval", "demonstration", "explore", "check"]
OutcomeKind = Literal[
    "success", "failure", "truncated", "invalid_action", "env_error", "policy_error", "lost", "cancelled"
]


class BlobRef(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to bytes in the store by sha256 (hex); size in bytes, width and height in pixels."""

    sha256: Digest
    size: Count
    media_type: Name = "image/png"
    width: Pixels = 0
    height: Pixels = 0


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A judge's verdict on an episode. Without one ``success`` is null and ``reason`` says why.

    Otherwise ``reason`` is the beginning of the judge's answer. ``judge`` is its name.
    """

    success: bool | None
    reason: Excerpt = ""
    judge: Name = ""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters. Requests carry no seed, so that groups stay diverse."""

    temperature: Temperature = 1.0
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    max_tokens: Token = 32

    @property
    def is_whole(self) -> bool:
        """Return whether tokens are drawn from the model's whole distribution.

        Otherwise log-probabilities of the engine are of a cut distribution, and those of the trainer are not.
        """
        return self.temperature >= LEAST_TEMPERATURE and self.top_p == 1


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens ``[start, end)`` of a generation were sampled by weight version ``version``."""

    version: Version
    start: Token
    end: Token


class OfferedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A function that an environment offers to the policy; ``parameters`` is the JSON schema of its arguments."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: Annotated[str, Meta(max_length=4096)]
    parameters: Annotated[str, Meta(max_length=16_384)]


class MessagePart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a prompt: text or an image, never both, in the order of the prompt.

    Consecutive parts of a role are one message; a ``separate`` part begins a new one.
    """

    role: Literal["system", "user", "assistant"]
    text: Prose | None = None
    image: BlobRef | None = None
    separate: bool | msgspec.UnsetType = msgspec.UNSET
