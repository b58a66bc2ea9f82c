"""The way to a slot's desktop: a port on loopback, whose requests are passed on to the server inside the sandbox.

The token is checked here, so it never gets into the sandbox, and only what the contract has is passed on.
"""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import aiohttp
from aiohttp import web

from workers.env.backends.desktop.sandbox import Sandbox

GUEST = "http://desktop/osworld"
REQUEST_BYTES = 256 * 2**20
CHUNK_BYTES = 2**16
CALL_S, COMMAND_S, SCRIPT_S = 30.0, 150.0, 610.0
LONGER = {
    "/accessibility": 90.0,
    "/terminal": 90.0,
    "/execute": COMMAND_S,
    "/setup/execute": COMMAND_S,
    "/execute_with_verification": 2 * COMMAND_S,
    "/setup/execute_with_verification": 2 * COMMAND_S,
    "/run_python": 60.0,
    "/run_bash_script": SCRIPT_S,
    "/setup/open_file": 90.0,
    "/setup/upload": 2 * COMMAND_S,
    "/setup/download_file": SCRIPT_S,
    "/file": 2 * COMMAND_S,
}
"""How long a request may take, where that is more than ``CALL_S``: each a little more than the server's own bound."""
READ = frozenset({"/screenshot", "/accessibility", "/terminal", "/platform", "/cursor_position"})
DONE = frozenset(
    {
        *("/screen_size", "/window_size", "/desktop_path", "/wallpaper", "/list_directory", "/file"),
        *("/execute", "/setup/execute", "/execute_with_verification", "/setup/execute_with_verification"),
        *("/run_python", "/run_bash_script", "/setup/upload", "/setup/launch", "/setup/open_file"),
        *("/setup/activate_window", "/setup/close_window", "/setup/change_wallpaper", "/setup/download_file"),
        *("/start_recording", "/end_recording"),
    }
)


class GatewayTarget(NamedTuple):
    """The desktop that a request may reach, or why it may not: a status and a reason."""

    sandbox: Sandbox | None
    status: int = 200
    reason: str = ""


class Gateway:
    """Passes requests on; ``open_for`` decides which desktop they reach."""

    def __init__(self, open_for: Callable[[web.Request], GatewayTarget]) -> None:
        self.open_for = open_for

    def application(self) -> web.Application:
        """Return the application to serve."""
        made = web.Application(client_max_size=REQUEST_BYTES)
        made.add_routes([web.get(path, self.pass_on) for path in READ])
        made.add_routes([web.post(path, self.pass_on) for path in DONE])
        return made

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on once, and its answer back."""
        opened = self.open_for(request)
        if opened.sandbox is None:
            return error_response(opened.status, opened.reason)
        if (request.content_length or 0) > REQUEST_BYTES:
            return error_response(413, f"a request has at most {REQUEST_BYTES} bytes")
        bound = aiohttp.ClientTimeout(total=LONGER.get(request.path, CALL_S))
        headers = {name: request.headers[name] for name in ("Content-Type",) if name in request.headers}
        body = bounded_body(request) if request.body_exists else None
        connector = aiohttp.UnixConnector(opened.sandbox.socket, force_close=True)
        answer: web.StreamResponse | None = None
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=bound, auto_decompress=False) as session,
                session.request(request.method, GUEST + request.path, data=body, headers=headers) as found,
            ):
                answer = web.StreamResponse(status=found.status)
                answer.headers["Content-Type"] = found.headers.get("Content-Type", "application/octet-stream")
                answer.content_length = found.content_length
                await answer.prepare(request)
                async for part in found.content.iter_chunked(CHUNK_BYTES):
                    await answer.write(part)
                await answer.write_eof()
                return answer
        except RequestTooLong:
            return error_response(413, f"a request has at most {REQUEST_BYTES} bytes")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if answer is not None:
                raise  # Its beginning is sent: the connection is cut, so that nobody takes it for whole.
            late = f"no answer within {bound.total:g} s"
            return error_response(502, f"the desktop fails: {late if isinstance(error, TimeoutError) else error}")


class RequestTooLong(Exception):
    """A request has more bytes than it may."""


async def bounded_body(request: web.Request) -> AsyncIterator[bytes]:
    """Yield a request's body; raise TooLong when it is too long."""
    size = 0
    async for part in request.content.iter_chunked(CHUNK_BYTES):
        size += len(part)
        if size > REQUEST_BYTES:
            raise RequestTooLong
        yield part


def bearer_token(request: web.Request) -> str | None:
    """Return the token of a request, None if it has none."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def error_response(status: int, reason: str) -> web.Response:
    """Return an answer that says why not."""
    return web.json_response({"status": "error", "error": reason, "message": reason}, status=status)
