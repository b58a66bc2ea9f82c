"""HTTP client of an OpenAI-compatible endpoint, with bounded calls and safe retries.

A call is retried if the connection failed or the endpoint did not take the request (429, 503), also if it says so
with status 200. Anything else may have
been computed and paid for, and is an error of the request.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Any, NoReturn, Self

import aiohttp
import msgspec
import structlog

from dart_streams.config.openai import Openai
from dart_streams.config.text import MALFORMED
from dart_streams.connection.auth import read_secret
from dart_streams.deadline import Deadline
from dart_streams.errors import AccessRefused
from workers.rollout.engine import EngineFault
from workers.rollout.openai_chat import Completion, context_of, decode, retry_after_s

CONNECT_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 4.0
"""Idle time of connections, below the 5 s after which vLLM's server closes them."""
MAX_RESPONSE_BYTES = 16 << 20
"""Maximum response size."""
FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 8.0
"""Pauses between tries, doubled each time, unless the endpoint asks for another."""
MOST_ASKED_S = 60.0
"""Maximum wait that an endpoint may ask for; after a longer one, one request tries it again."""
NOT_TAKEN = frozenset({429, 503})
"""Statuses of requests that were not computed."""
REFUSED = frozenset({401, 403, 404})
"""Statuses that a retry does not change: wrong key, address or model."""
REJECTED = frozenset({400, 422})
"""Statuses that reject this body only."""
EXCERPT = 200
STATUSES = {"rate_limit": 429, "overloaded": 503}
"""What names of errors contain, and the status that says the same."""

log = structlog.get_logger()


class EndpointRefused(AccessRefused):
    """The endpoint rejects the key, the model or the address."""


class RequestRejected(EngineFault):
    """The endpoint rejects this body: a field or its length."""


class ReportedError(msgspec.Struct, frozen=True):
    """Body of a response, or a choice in it, that reports an error, whatever its status is."""

    error: Any = None
    object: Any = None
    message: Any = None
    code: Any = None
    choices: "list[ReportedError]" = []


class ChatEndpoint:
    """Posts to ``settings.base_url``, at most ``connections`` at once; ``Retry-After`` delays all.

    Errors name the keys of the configuration's ``section``.
    """

    def __init__(self, settings: Openai, connections: int, section: str = "rollout.openai") -> None:
        self.section = section
        self.url = settings.base_url.rstrip("/") + "/chat/completions"
        self.models_url = settings.base_url.rstrip("/") + "/models"
        self.model = settings.model
        self.key = read_secret(settings.api_key, f"{section}.api_key") if settings.api_key else ""
        self.connections = connections
        self._open_at = Deadline(0.0)
        self._asked_s = 0.0
        """Last wait that the endpoint asked for, unbounded."""

    async def __aenter__(self) -> Self:
        """Create the client; nothing is sent yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.connections, keepalive_timeout=KEEP_ALIVE_S),
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def complete(self, body: bytes, deadline: Deadline) -> Completion:
        """Return the chat completion to a body; raises as :meth:`post`."""
        return decode(await self.post(self.url, body, deadline))

    async def post(self, url: str, body: bytes, deadline: Deadline) -> bytes:
        """Return the response to a body; raise EngineFault, or :class:`EndpointRefused` if every request would fail."""
        tried = 0
        while True:
            probe = await self._wait_turn(deadline)
            tried += 1
            try:
                async with deadline.timeout():
                    status, headers, data = await self._post(url, body)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                await self._wait(deadline, pause_s(tried), f"no connection to {url}: {error}")
                continue
            except TimeoutError:
                raise EngineFault(f"no response from {url} in time") from None
            except (aiohttp.ClientError, ConnectionError) as error:
                raise EngineFault(f"{url} failed: {type(error).__name__}: {error}") from None
            reported = reported_error(data) if status == 200 else None
            status, data = reported or (status, data)
            if probe and status not in NOT_TAKEN:
                self._asked_s, self._open_at = 0.0, Deadline(0.0)
            if status == 200:
                return data
            reason = f"{url} answered {status}: {self._excerpt(data)}"
            if status not in NOT_TAKEN:
                self._fail(status, reason)
            asked_s = retry_after_s(headers.get("Retry-After"), headers.get("Date"))
            wait_s = pause_s(tried) if asked_s is None else min(asked_s, MOST_ASKED_S)
            if asked_s is not None and wait_s > self._open_at.remaining_s:
                self._asked_s, self._open_at = asked_s, Deadline(wait_s)
                reason += f" (Retry-After: {asked_s:.0f} s)"
            log.info("endpoint not ready", status=status, retry_after_s=asked_s, tried=tried)
            await self._wait(deadline, wait_s, reason)

    async def context(self, deadline: Deadline) -> int | None:
        """Return the model's context length if the endpoint lists it, otherwise None."""
        try:
            async with deadline.timeout(), self._session.get(self.models_url, allow_redirects=False) as response:
                return context_of(await self._read(response), self.model)
        except (TimeoutError, aiohttp.ClientError, ConnectionError, EngineFault):
            return None

    async def _post(self, url: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Content-Type": "application/json"}
        # A redirect would carry the key and the screenshots elsewhere.
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            return response.status, response.headers, await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """Return a response's body; raise EngineFault if it is too large."""
        data = bytearray()
        async for chunk in response.content.iter_any():
            data += chunk
            if len(data) > MAX_RESPONSE_BYTES:
                raise EngineFault(f"{response.url} answered more than {MAX_RESPONSE_BYTES >> 20} MiB")
        return bytes(data)

    async def _wait_turn(self, deadline: Deadline) -> bool:
        """Wait as long as the endpoint asks; return whether this request tries it while the others wait on."""
        while left_s := self._open_at.remaining_s:
            await self._wait(deadline, left_s, f"the endpoint asks to wait {self._asked_s:.0f} s")
        if probe := self._asked_s > MOST_ASKED_S:
            self._open_at = Deadline(MOST_ASKED_S)
        return probe

    async def _wait(self, deadline: Deadline, seconds: float, reason: str) -> None:
        """Wait; raise EngineFault with the reason if the deadline would pass meanwhile."""
        if seconds and seconds >= deadline.remaining_s:
            raise EngineFault(f"{reason} (for {seconds:.1f} s, and {deadline.remaining_s:.1f} s are left)")
        await asyncio.sleep(seconds)

    def _fail(self, status: int, reason: str) -> NoReturn:
        if status in REFUSED:
            raise EndpointRefused(
                f"{reason}. Check {self.section}.base_url, {self.section}.model ({self.model!r}) and "
                f"{self.section}.api_key"
            )
        raise RequestRejected(reason) if status in REJECTED else EngineFault(reason)

    def _excerpt(self, data: bytes) -> str:
        """Return the beginning of a response as text, with the key masked."""
        text = " ".join(data[: 4 * EXCERPT].decode(errors="replace").split())
        return (text.replace(self.key, "***") if self.key else text)[:EXCERPT] or "nothing"


def pause_s(tried: int) -> float:
    """Return the pause after ``tried`` tries, with jitter (seconds)."""
    return min(MOST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (tried - 1)) * random.uniform(0.5, 1.0)


def reported_error(data: bytes) -> tuple[int, bytes] | None:
    """Return status and JSON of the error in a response of status 200, None without one.

    A choice with text was computed, whatever its error's code is: its status is 500.
    """
    if b'"error"' not in data:
        return None
    try:
        body = msgspec.json.decode(data, type=ReportedError)
    except MALFORMED:
        return None
    for part in (body, *body.choices):
        error = part.error or ({"code": part.code, "message": part.message} if part.object == "error" else None)
        if error:
            text = isinstance(part.message, dict) and part.message.get("content")
            return 500 if text else status_of(error), msgspec.json.encode(error)
    return None


def status_of(error: object) -> int:
    """Return the status that an error's code or type says, 500 if none."""
    fields = error if isinstance(error, dict) else {}
    code = str(fields.get("code") or "")
    if code.isascii() and code.isdigit() and len(code) == 3:
        return int(code)
    named = f"{code} {fields.get('type')}"
    return next((status for words, status in STATUSES.items() if words in named), 500)
