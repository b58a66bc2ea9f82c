"""Interface of generation engines."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import msgspec

from dart_streams.errors import UserError
from topics.action_requests import ActionRequest
from topics.values import VersionSpan
from topics.weights import WeightVersion

Recalled = Literal["same", "other", "rewritten"]
"""Tokens of an answer in later prompts: those generated, others of the same text, or those of a rewritten text."""


class EngineFault(Exception):
    """One request failed; its reply carries the error and the worker continues."""


class LoadFault(Exception):
    """A weight version could not be loaded; the previous weights keep serving."""


class EngineDead(Exception):
    """The engine failed for good; the process ends and its supervisor restarts it."""


@contextlib.contextmanager
def request_boundary(*of_engine: type[Exception]) -> Iterator[None]:
    """Raise as :class:`EngineFault` what the work for one request raises, but for errors of the whole engine."""
    passing: tuple[type[Exception], ...] = (EngineFault, EngineDead, *of_engine)
    try:
        yield
    except passing:
        raise
    except UserError as error:
        raise EngineFault(str(error)) from error
    except Exception as error:
        raise EngineFault(f"{type(error).__name__}: {error}") from error


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A response with ``logprobs`` and ``entropies`` (nats) per token; ``prefill_ms`` starts after ``fetch_ms``.

    ``cached_tokens`` of the ``prompt_tokens`` came from the engine's prefix cache. ``recalled`` says which tokens later
    prompts have for this answer, if the engine knows.
    """

    text: str
    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    versions: list[VersionSpan]
    prompt_tokens: int
    prompt_sha: str
    cached_tokens: int = 0
    fetch_ms: float = 0.0
    prefill_ms: float = 0.0
    recalled: Recalled | None = None


class Engine:
    """Engine with continuous batching: :meth:`generate` calls run concurrently, also during :meth:`load`."""

    async def start(self, version: WeightVersion) -> None:
        """Serve ``version`` after a first generation; raise :class:`LoadFault` if it does not load."""
        raise NotImplementedError

    async def generate(self, request: ActionRequest) -> Generation:
        """Answer a request, or score the tokens that a replayed one brings (``request.recorded``).

        Raises :class:`EngineFault` if it fails, :class:`EngineDead` if all would.
        """
        raise NotImplementedError

    async def load(self, version: WeightVersion) -> float:
        """Switch to ``version``; return the pause (ms). Raises :class:`LoadFault` and keeps serving the old weights."""
        raise NotImplementedError

    def digest(self) -> str | None:
        """Return the SHA-256 (hex) of the served weights, computed from them; None without weights."""
        return None

    async def check(self) -> None:
        """Raise :class:`EngineDead` if the engine has failed for good."""

    async def stop(self) -> None:
        """Free all resources."""
