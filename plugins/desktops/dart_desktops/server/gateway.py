"""Gateway of a slot: a port on loopback that forwards requests to the server in the sandbox.

It checks the token, which never enters the sandbox, and forwards only requests of OSWorld's HTTP API.
"""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import aiohttp
import structlog
from aiohttp import web

from dart_desktops.desktop.sandbox import Sandbox

GUEST = "http://desktop/osworld"
FAILURE_HEADER = "X-Command-Failed"
"""Header of the sandbox's server: exit code and last error line of a command that failed."""
REQUEST_BYTES = 256 * 2**20
CHUNK_BYTES = 2**16
CALL_S, COMMAND_S, SCRIPT_S = 30.0, 150.0, 610.0
TIMEOUTS_S = {
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
"""Time limits other than ``CALL_S``, each a little above the sandbox's own limit."""
GET_PATHS = frozenset({"/screenshot", "/accessibility", "/terminal", "/platform", "/cursor_position"})
POST_PATHS = frozenset(
    {
        *("/screen_size", "/window_size", "/desktop_path", "/wallpaper", "/list_directory", "/file"),
        *("/execute", "/setup/execute", "/execute_with_verification", "/setup/execute_with_verification"),
        *("/run_python", "/run_bash_script", "/setup/upload", "/setup/launch", "/setup/open_file"),
        *("/setup/activate_window", "/setup/close_window", "/setup/change_wallpaper", "/setup/download_file"),
        *("/start_recording", "/end_recording"),
    }
)

log = structlog.get_logger()


class GatewayTarget(NamedTuple):
    """The desktop for a request, or status and reason of its rejection."""

    sandbox: Sandbox | None
    status: int = 200
    reason: str = ""
    release: Callable[[], object] = lambda: None
    """Called at the end of the request."""


class Gateway:
    """Forwards requests to the desktop that ``open_for`` returns."""

    def __init__(self, open_for: Callable[[web.Request], GatewayTarget]) -> None:
        self.open_for = open_for

    def application(self) -> web.Application:
        """Return the application to serve."""
        application = web.Application(client_max_size=REQUEST_BYTES)
        application.add_routes([web.get(path, self.pass_on) for path in GET_PATHS])
        application.add_routes([web.post(path, self.pass_on) for path in POST_PATHS])
        return application

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Forward a request once, and return its response."""
        target = self.open_for(request)
        if target.sandbox is None:
            return error_response(target.status, target.reason)
        try:
            with target.sandbox.priority.during_call():
                return await self._forward(request, target.sandbox)
        finally:
            target.release()

    async def _forward(self, request: web.Request, sandbox: Sandbox) -> web.StreamResponse:
        if (request.content_length or 0) > REQUEST_BYTES:
            return error_response(413, f"a request has at most {REQUEST_BYTES} bytes")
        bound = aiohttp.ClientTimeout(total=time_limit_s(request.path))
        headers = {name: request.headers[name] for name in ("Content-Type",) if name in request.headers}
        body = bounded_body(request) if request.body_exists else None
        connector = aiohttp.UnixConnector(sandbox.socket, force_close=True)
        answer: web.StreamResponse | None = None
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=bound, auto_decompress=False) as session,
                session.request(request.method, GUEST + request.path, data=body, headers=headers) as reply,
            ):
                if failure := reply.headers.get(FAILURE_HEADER):
                    code, _, error = failure.partition(" ")
                    log.warning("command failed", desktop=request.host, returncode=int(code), error=error)
                answer = web.StreamResponse(status=reply.status)
                answer.headers["Content-Type"] = reply.headers.get("Content-Type", "application/octet-stream")
                answer.content_length = reply.content_length
                await answer.prepare(request)
                async for part in reply.content.iter_chunked(CHUNK_BYTES):
                    await answer.write(part)
                await answer.write_eof()
                return answer
        except RequestTooLong:
            return error_response(413, f"a request has at most {REQUEST_BYTES} bytes")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if answer is not None:
                raise  # Part of it is sent: closing the connection marks it as incomplete.
            late = f"no answer within {bound.total:g} s"
            return error_response(502, f"the desktop fails: {late if isinstance(error, TimeoutError) else error}")


class RequestTooLong(Exception):
    """The request is too long."""


async def bounded_body(request: web.Request) -> AsyncIterator[bytes]:
    """Yield a request's body; raise RequestTooLong beyond the limit."""
    size = 0
    async for part in request.content.iter_chunked(CHUNK_BYTES):
        size += len(part)
        if size > REQUEST_BYTES:
            raise RequestTooLong
        yield part


def time_limit_s(path: str) -> float:
    """Return how long a request may take."""
    return TIMEOUTS_S.get(path, CALL_S)


def bearer_token(request: web.Request) -> str | None:
    """Return the bearer token of a request, None without one."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def error_response(status: int, reason: str) -> web.Response:
    """Return an error response with its reason."""
    return web.json_response({"status": "error", "error": reason, "message": reason}, status=status)
