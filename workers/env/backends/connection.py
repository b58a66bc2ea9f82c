"""Requests to one server: each is bounded in time and size, and sent at most once.

Each request has its own connection: aiohttp repeats a request when a reused connection turns out to be closed.
"""

import json
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
import msgspec

from dart_streams.config.text import MALFORMED, raise_if_dense
from dart_streams.deadline import Deadline
from workers.env.environment import EnvironmentFault

REASON_CHARACTERS = 300
ANSWER_BYTES = 64 * 2**20


class StatusFault(EnvironmentFault):
    """The status of a response says that the request failed."""

    def __init__(self, url: str, status: int, body: bytes) -> None:
        super().__init__(f"{url}: status {status}: {excerpt(body)}")
        self.status = status


class AnswerTooLong(EnvironmentFault):
    """A response is longer than the bound of its request."""


class Connection:
    """Sends requests to one server; raises EnvironmentFault with the reason if one fails."""

    def __init__(self, url: str, call_timeout_s: float, headers: Mapping[str, str] | None = None) -> None:
        self.url = url.rstrip("/")
        self.call_timeout_s = call_timeout_s
        self.headers = headers
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the session; later requests fail."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def send(
        self,
        method: str,
        path: str,
        deadline: Deadline | None = None,
        *,
        limit_s: float | None = None,
        limit_bytes: int = ANSWER_BYTES,
        json_body: object = None,
        data: aiohttp.FormData | None = None,
    ) -> bytes:
        """Send a request once and return the body of its response.

        Raises StatusFault for any status but 2xx, and EnvironmentFault for a response that is late or too long.
        """
        bound_s = min(limit_s or self.call_timeout_s, deadline.remaining_s if deadline else float("inf"))
        if bound_s <= 0:
            raise EnvironmentFault(f"{self.at(path)}: no time is left to ask")
        request = self._client().request(
            method,
            self.at(path),
            json=json_body,
            data=data,
            timeout=aiohttp.ClientTimeout(total=bound_s),
            allow_redirects=False,
        )
        try:
            async with request as answer:
                body = await read(answer, limit_bytes, self.at(path))
        except TimeoutError:
            raise EnvironmentFault(f"{self.at(path)}: no answer within {bound_s:.3g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EnvironmentFault(f"{self.at(path)}: {str(error) or type(error).__name__}") from None
        if not 200 <= answer.status < 300:
            raise StatusFault(self.at(path), answer.status, body)
        return body

    def at(self, path: str) -> str:
        """Return the URL of a path."""
        return self.url + path

    def field(self, path: str, answer: bytes, name: str, kind: type) -> Any:
        """Return a field of a JSON response; raise EnvironmentFault if there is none of this type."""
        value = self.decode(path, answer, dict[str, Any]).get(name)
        if not isinstance(value, kind):
            raise EnvironmentFault(f"{self.at(path)} answers without {name!r}: {excerpt(answer)}")
        return value

    def decode(self, path: str, answer: bytes, kind: Any) -> Any:
        """Decode a JSON response as a ``kind``; raise EnvironmentFault if it is invalid or has too many values."""
        try:
            raise_if_dense(answer)
            return msgspec.convert(json.loads(answer), kind)  # Names of files may have halves of surrogate pairs.
        except (ValueError, *MALFORMED) as error:
            raise EnvironmentFault(f"{self.at(path)} returns an invalid response: {error}: {excerpt(answer)}") from None

    def _client(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EnvironmentFault(f"the client of {self.url} is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                headers=self.headers,
                skip_auto_headers=("Accept-Encoding",),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def read(answer: aiohttp.ClientResponse, limit_bytes: int, place: str) -> bytes:
    """Return a body; raise :class:`AnswerTooLong`, which names the ``place``, if it has more than ``limit_bytes``."""
    body = bytearray()
    async for part in answer.content.iter_chunked(2**16):
        body += part
        if len(body) > limit_bytes:
            raise AnswerTooLong(f"{place}: the answer is longer than {limit_bytes} bytes")
    return bytes(body)


def excerpt(body: bytes) -> str:
    """Return the beginning of a body for an error message."""
    return body[:REASON_CHARACTERS].decode(errors="replace").strip()
