"""Requests to one machine: each is bounded in time and size, and sent at most once.

Each request has its own connection: aiohttp repeats a request when a reused connection turns out to be closed.
"""

import json
from typing import Any

import aiohttp
import msgspec

from dart_streams.deadline import Deadline
from workers.env.environment import EnvironmentFault

REASON_CHARACTERS = 300
ANSWER_BYTES = 64 * 2**20


class FileMissing(EnvironmentFault):
    """The machine has no file of this path."""


class MachineGone(EnvironmentFault):
    """The machine or its lease has ended; it will not answer again."""


class MachineEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address and token of a machine, and the further ports that evaluators use."""

    url: str
    token: str = ""
    chromium_port: int = 9222
    vlc_port: int = 8080

    def __repr__(self) -> str:
        """Omit the token: endpoints are logged."""
        return f"MachineEndpoint({self.url!r}{', with a token' if self.token else ''})"


class Connection:
    """Sends requests to one machine; raises EnvironmentFault with the reason if one fails."""

    def __init__(self, endpoint: MachineEndpoint, call_timeout_s: float) -> None:
        self.endpoint = endpoint
        self.call_timeout_s = call_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        """Close the session; later requests fail."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def send(
        self,
        method: str,
        path: str,
        deadline: Deadline | None,
        *,
        limit_s: float | None = None,
        limit_bytes: int = ANSWER_BYTES,
        json_body: object = None,
        data: aiohttp.FormData | None = None,
        missing: str = "",
    ) -> bytes:
        """Send a request once and return the body of its response.

        Raises EnvironmentFault for any status but 200, and for a response that is late or too long; FileMissing for
        404 if ``missing`` names what is requested.
        """
        status, body = await self.exchange(
            method, path, deadline, limit_s=limit_s, limit_bytes=limit_bytes, json_body=json_body, data=data
        )
        if status == 404 and missing:
            raise FileMissing(f"{self.at(path)}: no {missing}")
        if status == 410:
            raise MachineGone(f"{self.at(path)}: {excerpt(body)}")
        if status != 200:
            raise EnvironmentFault(f"{self.at(path)}: status {status}: {excerpt(body)}")
        return body

    async def exchange(
        self,
        method: str,
        path: str,
        deadline: Deadline | None,
        *,
        limit_s: float | None = None,
        limit_bytes: int = ANSWER_BYTES,
        json_body: object = None,
        data: aiohttp.FormData | None = None,
    ) -> tuple[int, bytes]:
        """Send a request once and return status and body; raise EnvironmentFault if they are late or too long."""
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
                return answer.status, await read(answer, limit_bytes)
        except TimeoutError:
            raise EnvironmentFault(f"{self.at(path)}: no answer within {bound_s:.3g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EnvironmentFault(f"{self.at(path)}: {str(error) or type(error).__name__}") from None

    def at(self, path: str) -> str:
        """Return the URL of a path."""
        return f"{self.endpoint.url.rstrip('/')}{path}"

    def field(self, path: str, answer: bytes, name: str, kind: type) -> Any:
        """Return a field of a JSON response; raise EnvironmentFault if there is none of this type."""
        value = self.decode(path, answer, dict[str, Any]).get(name)
        if not isinstance(value, kind):
            raise EnvironmentFault(f"{self.at(path)} answers without {name!r}: {excerpt(answer)}")
        return value

    def decode(self, path: str, answer: bytes, kind: Any) -> Any:
        """Decode a JSON response as a ``kind``; raise EnvironmentFault if it is invalid."""
        try:
            return msgspec.convert(json.loads(answer), kind)
        except ValueError as error:
            raise EnvironmentFault(f"{self.at(path)} returns an invalid response: {error}: {excerpt(answer)}") from None

    def _client(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EnvironmentFault(f"the client of {self.endpoint.url} is closed")
        if self._session is None:
            token = self.endpoint.token
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                headers={"Authorization": f"Bearer {token}"} if token else {},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def read(answer: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """Return a body; raise ValueError if it is longer than ``limit_bytes``."""
    parts, size = [], 0
    async for part in answer.content.iter_chunked(2**16):
        size += len(part)
        if size > limit_bytes:
            raise ValueError(f"the answer is longer than {limit_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def excerpt(body: bytes) -> str:
    """Return the beginning of a body for an error message."""
    return body[:REASON_CHARACTERS].decode(errors="replace").strip()
