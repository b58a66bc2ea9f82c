"""The HTTP server of a sandbox: it handles one request at a time, on a socket of the environment worker."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from dart_desktops.desktop.guest import calls, osworld_api, tunnels
from dart_desktops.desktop.guest.display import DISPLAY_ERRORS, InputError
from dart_desktops.desktop.guest.session import HOME, DesktopSession, SessionError

REQUEST_BYTES = 256 * 2**20
ELEMENTS_S = 60.0
"""Time limit of the accessible elements; the worker's limit of the whole call is usually lower."""
OUTCOME_S = 30.0
"""Time limit for a desktop to come to rest before its outcome, if it was not at rest after the last step."""
TUNNEL = "/tunnel/"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The endpoints of one session."""

    def __init__(self, session: DesktopSession) -> None:
        self.session = session
        self.executed = ""
        self.at_rest = True
        """Whether the desktop came to rest after the last action."""
        self.called, self.returned = "", ""
        self.reader: asyncio.subprocess.Process | None = None
        self.one_at_a_time = asyncio.Lock()

    def application(self) -> web.Application:
        """Return the application to serve."""
        application = web.Application(middlewares=[self._answer], client_max_size=REQUEST_BYTES)
        application.add_subapp(osworld_api.PREFIX, osworld_api.OsworldApi(self.session).application())
        application.add_routes(
            [
                web.get("/ready", self._ready),
                web.post("/prepare", self._prepare),
                web.post("/session", self._start),
                web.get("/screen", self._show),
                web.post("/step", self._step),
                web.post("/call", self._call),
                web.get("/outcome", self._outcome),
                web.get("/elements", self._elements),
                web.get(TUNNEL + r"{port:\d+}", tunnels.open_tunnel),
            ]
        )
        return application

    async def _ready(self, _: web.Request) -> web.Response:
        return web.json_response({"home": str(HOME)})

    async def _start(self, request: web.Request) -> web.Response:
        """Start a session with the arguments of :meth:`DesktopSession.start`."""
        arguments = await request.json()
        await self._end_reader()
        self.executed = self.called = ""
        self.at_rest = True
        await self.session.start(**arguments)
        return self._screen(at_rest=True)

    async def _prepare(self, request: web.Request) -> web.Response:
        """Start a desktop without an application, with the arguments of :meth:`DesktopSession.prepare`."""
        await self._end_reader()
        await self.session.prepare(**await request.json())
        return web.json_response({})

    async def _show(self, _: web.Request) -> web.Response:
        """Return the screen, at once if nothing was drawn since the last one."""
        self.session.check()
        return self._screen(not self.session.shown.drew() or await self.session.settle())

    async def _step(self, request: web.Request) -> web.Response:
        """Perform ``events`` once for an ``id``, wait until the desktop is at rest, and return the screen.

        An event ``rest`` waits for that too, before the next event.
        """
        arguments = await request.json()
        quiet_s = self.session.step_quiet_s
        if arguments["id"] != self.executed:
            self.executed = arguments["id"]
            *before, last = split_at_rests(arguments["events"])
            for events in before:
                self.session.shown.perform(events)
                await self.session.settle(quiet_s=quiet_s)
            self.session.shown.perform(last, begins=not before)
        self.at_rest = await self.session.settle(quiet_s=quiet_s)
        return self._screen(self.at_rest, arguments.get("image", True))

    async def _call(self, request: web.Request) -> web.Response:
        """Call a function once for an ``id``, and return its text; `/step` with the id then shows the screen."""
        arguments = await request.json()
        if arguments["id"] not in {self.called, self.executed}:
            self.called = arguments["id"]
            self.returned = await calls.call(arguments["name"], arguments["arguments"])
        return web.json_response({"returned": self.returned if arguments["id"] == self.called else ""})

    async def _outcome(self, _: web.Request) -> web.Response:
        """Return the outcome, of a desktop at rest: an application that computes may be about to save."""
        self.session.check()
        if not self.at_rest:
            self.at_rest = await self.session.settle(OUTCOME_S)
        return web.json_response(self.session.outcome())

    async def _elements(self, _: web.Request) -> web.Response:
        if self.reader is None:
            self.reader = await asyncio.create_subprocess_exec(
                "/usr/bin/python3",
                *("-E", "-s", "-m", "dart_desktops.desktop.guest.accessibility_tree", "serve"),
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
        return web.Response(text=json.loads(line))

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
        """Handle one request at a time, except OSWorld's and tunnels; an error becomes a response with its reason."""
        if request.path.startswith((f"{osworld_api.PREFIX}/", TUNNEL)):
            return await handler(request)
        async with self.one_at_a_time:
            try:
                return await handler(request)
            except (InputError, KeyError, TypeError, json.JSONDecodeError) as error:
                return error_response(400, error)
            except (SessionError, OSError, TimeoutError, *DISPLAY_ERRORS) as error:
                return error_response(500, error)  # The server goes on; the worker decides about the sandbox.


def split_at_rests(events: "list[list[Any]]") -> "list[list[list[Any]]]":
    """Return the events before, between and after those of the kind ``rest``."""
    parts: list[list[list[Any]]] = [[]]
    for event in events:
        if event[0] == "rest":
            parts.append([])
        else:
            parts[-1].append(event)
    return parts


def error_response(status: int, error: Exception) -> web.Response:
    """Return the response for an error."""
    return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=status)
