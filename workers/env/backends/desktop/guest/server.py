"""The HTTP server of a sandbox: one request at a time, on a socket made by the environment worker."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from workers.env.backends.desktop.guest import osworld_api
from workers.env.backends.desktop.guest.display import DISPLAY_ERRORS, InputError
from workers.env.backends.desktop.guest.session import HOME, DesktopSession, SessionError

REQUEST_BYTES = 256 * 2**20
ELEMENTS_S = 60.0
"""How long the accessible elements may take; the worker bounds the whole call, usually by less."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The endpoints over one session."""

    def __init__(self, session: DesktopSession) -> None:
        self.session = session
        self.executed = ""
        self.reader: asyncio.subprocess.Process | None = None
        self.one_at_a_time = asyncio.Lock()

    def application(self) -> web.Application:
        """Return the application to serve."""
        made = web.Application(middlewares=[self._answer], client_max_size=REQUEST_BYTES)
        made.add_subapp(osworld_api.PREFIX, osworld_api.OsworldApi(self.session).application())
        made.add_routes(
            [
                web.get("/ready", self.ready),
                web.post("/prepare", self.prepare),
                web.post("/session", self.start),
                web.get("/screen", self.screen),
                web.post("/step", self.step),
                web.get("/outcome", self.outcome),
                web.get("/elements", self.elements),
            ]
        )
        return made

    async def ready(self, _: web.Request) -> web.Response:
        """Answer that the server is up."""
        return web.json_response({"home": str(HOME)})

    async def start(self, request: web.Request) -> web.Response:
        """Start a session afresh: the arguments of :meth:`DesktopSession.start`."""
        wanted = await request.json()
        await self._end_reader()
        self.executed = ""
        await self.session.start(**wanted)
        return self._screen(at_rest=True)

    async def prepare(self, request: web.Request) -> web.Response:
        """Start a desktop afresh, without an application: the arguments of :meth:`DesktopSession.prepare`."""
        await self._end_reader()
        await self.session.prepare(**await request.json())
        return web.json_response({})

    async def screen(self, _: web.Request) -> web.Response:
        """Show the screen: at once, if nothing was drawn since it was last shown."""
        self.session.check()
        return self._screen(not self.session.shown.drew() or await self.session.settle())

    async def step(self, request: web.Request) -> web.Response:
        """Carry out ``events`` once for an ``id``, wait for rest, and show the screen."""
        wanted = await request.json()
        if wanted["id"] != self.executed:
            self.executed = wanted["id"]
            self.session.shown.perform(wanted["events"])
        return self._screen(await self.session.settle(), wanted.get("image", True))

    async def outcome(self, _: web.Request) -> web.Response:
        """Answer how the application ended, what it wrote, and what the task watches."""
        self.session.check()
        return web.json_response(self.session.outcome())

    async def elements(self, _: web.Request) -> web.Response:
        """Answer the accessible elements that are shown."""
        if self.reader is None:
            self.reader = await asyncio.create_subprocess_exec(
                "/usr/bin/python3",
                *("-E", "-s", "-m", "workers.env.backends.desktop.guest.accessibility"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=2**24,
            )
        assert self.reader.stdin is not None
        assert self.reader.stdout is not None
        self.reader.stdin.write(b"\n")
        async with asyncio.timeout(ELEMENTS_S):
            line = await self.reader.stdout.readline()
        if not line:
            raise SessionError("the accessible elements cannot be read")
        return web.json_response(json.loads(line))

    def _screen(self, at_rest: bool, image: bool = True) -> web.Response:
        headers = {"X-Over": str(int(self.session.over)), "X-At-Rest": str(int(at_rest))}
        body = self.session.shown.frames.png() if image else b""
        return web.Response(body=body, content_type="image/png", headers=headers)

    async def _end_reader(self) -> None:
        if self.reader is not None:
            reader, self.reader = self.reader, None
            with contextlib.suppress(ProcessLookupError):
                reader.kill()
            await reader.wait()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer one request at a time, but OSWorld's; what goes wrong is answered with its reason."""
        if request.path.startswith(f"{osworld_api.PREFIX}/"):
            return await handler(request)
        async with self.one_at_a_time:
            try:
                return await handler(request)
            except (InputError, KeyError, TypeError, json.JSONDecodeError) as error:
                return error_response(400, error)
            except (SessionError, OSError, TimeoutError, *DISPLAY_ERRORS) as error:
                return error_response(500, error)  # The server goes on: the worker decides what becomes of the sandbox.


def error_response(status: int, error: Exception) -> web.Response:
    """Return an answer that says what went wrong."""
    return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=status)
