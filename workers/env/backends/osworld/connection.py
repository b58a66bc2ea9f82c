"""Requests to one machine: each bounded in time and size, and sent at most once.

A connection serves one request. So none is lost with a connection that the other side had closed meanwhile, and aiohttp
has no reason to send one again.
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
    """The machine has ended, or its lease has: it will not answer again."""


class MachineEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a machine is reached, and by which token; the further ports are those that evaluators ask for."""

    url: str
    token: str = ""
    chromium_port: int = 9222
    vnc_port: int = 8006
    vlc_port: int = 8080

    def __repr__(self) -> str:
        """Show all but the token, for this ends up in logs."""
        return f"MachineEndpoint({self.url!r}{', with a token' if self.token else ''})"


class Connection:
    """Sends requests to one machine; raises EnvironmentFault, with the reason, for any end but the wanted one."""

    def __init__(self, endpoint: MachineEndpoint, call_timeout_s: float) -> None:
        self.endpoint = endpoint
        self.call_timeout_s = call_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        """Send nothing more."""
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
        """Send one request once; return the answer's body.

        Raises EnvironmentFault for any status but 200, and for an answer that is late or too long. ``missing`` is what
        a 404 lacks.
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
        """Send one request once; return the answer's status and body.

        Raises EnvironmentFault for an answer that does not come, is late or too long.
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
                return answer.status, await read(answer, limit_bytes)
        except TimeoutError:
            raise EnvironmentFault(f"{self.at(path)}: no answer within {bound_s:.3g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EnvironmentFault(f"{self.at(path)}: {str(error) or type(error).__name__}") from None

    def at(self, path: str) -> str:
        """Return the URL of a path."""
        return f"{self.endpoint.url.rstrip('/')}{path}"

    def field(self, path: str, answer: bytes, name: str, kind: type) -> Any:
        """Return a field of a JSON answer; raise EnvironmentFault if it has none of this type."""
        value = self.decode(path, answer, dict[str, Any]).get(name)
        if not isinstance(value, kind):
            raise EnvironmentFault(f"{self.at(path)} answers without {name!r}: {excerpt(answer)}")
        return value

    def decode(self, path: str, answer: bytes, kind: Any) -> Any:
        """Return a JSON answer as a ``kind``; raise EnvironmentFault if it is none."""
        try:
            return msgspec.convert(json.loads(answer), kind)
        except ValueError as error:
            raise EnvironmentFault(f"{self.at(path)} answers what it should not: {error}: {excerpt(answer)}") from None

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
    """Return the beginning of a body, for an error's text."""
    return body[:REASON_CHARACTERS].decode(errors="replace").strip()
