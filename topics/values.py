"""Values that several events share: blob references, sampling, token version segments, outcomes."""

from typing import Literal

import msgspec

Purpose = Literal["train", "eval", "demonstration"]
OutcomeKind = Literal["success", "failure", "truncated", "invalid_action", "env_error", "policy_error", "cancelled"]


class BlobRef(msgspec.Struct, frozen=True, kw_only=True):
    """A claim check: the bytes are in the store under their sha256 (hex); size in bytes, width and height in pixels."""

    sha256: str
    size: int
    media_type: str = "image/png"
    width: int = 0
    height: int = 0


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn: temperature 0 is greedy. Requests carry no seed, so that a group stays diverse."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 32


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens ``[start, end)`` of a generation were sampled by weight version ``version``."""

    version: int
    start: int
    end: int


class MessagePart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a prompt: text or an image, never both. The order of turns is the order in the prompt."""

    role: Literal["system", "user", "assistant"]
    text: str | None = None
    image: BlobRef | None = None
