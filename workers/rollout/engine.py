"""The interface of generation engines: tokens with their log-probabilities, entropies and weight versions."""

from typing import Protocol

import msgspec

from topics.action_requests import ActionRequest
from topics.values import VersionSpan
from topics.weights import WeightVersion


class EngineFault(Exception):
    """One request failed: its reply carries the error, and the worker continues."""


class LoadFault(Exception):
    """A weight version could not be loaded; the old one keeps serving."""


class EngineDead(Exception):
    """The engine is gone and cannot come back: the process ends, and its supervisor starts another."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A response: ``tokens``, ``logprobs`` and ``entropies`` (nats) have one entry per generated token.

    ``fetch_ms`` is how long the prompt's screenshots took from the store, before generation began; ``prefill_ms`` how
    long after that the first token was there, the wait for the engine's next step included.
    """

    text: str
    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    versions: list[VersionSpan]
    prompt_tokens: int
    prompt_sha: str
    fetch_ms: float = 0.0
    prefill_ms: float = 0.0


class Engine(Protocol):
    """Continuous batching: many :meth:`generate` calls run concurrently, also while :meth:`load` switches weights."""

    async def start(self, version: WeightVersion) -> None:
        """Make ready to serve ``version``, a first generation included; raise :class:`LoadFault` if it cannot load."""

    async def generate(self, request: ActionRequest) -> Generation:
        """Answer one request; raise :class:`EngineFault` if that fails, :class:`EngineDead` if all would."""

    async def load(self, version: WeightVersion) -> float:
        """Switch to ``version`` in place and return how long generation stood still (milliseconds).

        Raises :class:`LoadFault`, with the old weights still served, if the version cannot be loaded.
        """

    def digest(self) -> str | None:
        """Return the SHA-256 (hex) of the weights that are served, computed from them; None without weights."""

    async def check(self) -> None:
        """Raise :class:`EngineDead` if the engine has failed for good."""

    async def stop(self) -> None:
        """Free everything."""
