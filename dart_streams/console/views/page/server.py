"""The page's HTTP server: files, views as JSON, screenshots, and a WebSocket of what changes.

=============  ==================================================================================================
consumes       a :class:`~dart_streams.console.views.page.source.RunSource`: a run's topics and store, or a bundle
produces       nothing: it answers GET and HEAD
waits for      viewers; a live source is read only while there is one
unblocked by   a viewer
=============  ==================================================================================================
"""

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import structlog
from aiohttp import WSMsgType, web

from dart_streams.console.views.page.assets import Asset, media_type_of
from dart_streams.console.views.page.guard import Guard, hardened
from dart_streams.console.views.page.header import page_header
from dart_streams.console.views.page.source import NotFound, RunSource
from dart_streams.console.views.page.views import PageViews, Query
from dart_streams.console.views.page.wall import SlotTile
from dart_streams.errors import UserError

PUSH_S = 0.4
"""Between two messages to a tab: what changed in between goes together."""
HEX = re.compile(r"[0-9a-f]{64}")
FOR_EVER = "private, max-age=31536000, immutable"

log = structlog.get_logger()


class PageServer:
    """The routes; each view takes the query and returns what is encoded."""

    def __init__(
        self, source: RunSource, guard: Guard, files: Mapping[str, Asset], other: RunSource | None = None
    ) -> None:
        self.source = source
        self.guard = guard
        self.sources = [source, *([other] if other is not None else [])]
        self.files = files
        self.views = PageViews(source, other)

    def application(self) -> web.Application:
        """Return the application: one check before every route."""
        app = web.Application(middlewares=[self.guard.middleware()])
        app.router.add_get("/api/live", self.live)
        app.router.add_get("/api/{view}", self.answer)
        app.router.add_get("/export/{name}", self.lines)
        app.router.add_get("/screenshot/{sha256}", self.screenshot)
        app.router.add_get("/{file:.*}", self.file)
        return app

    async def file(self, request: web.Request) -> web.Response:
        """Answer with one of the page's files."""
        asset = self.files.get(request.path)
        if asset is None:
            return web.Response(status=404, text="no such page")
        cached = {"Cache-Control": "no-cache"}
        return web.Response(body=asset.data, content_type=asset.media_type, charset="utf-8", headers=cached)

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with a view as JSON; what went wrong is a sentence."""
        self.note_viewer()
        try:
            found = await self.views.answer(request.match_info["view"], request.query)
        except NotFound as error:
            return problem(404, str(error))
        except UserError as error:
            return problem(503, str(error))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def lines(self, request: web.Request) -> web.StreamResponse:
        """Answer with all that a filter matches, as JSON lines; made part by part, as the client takes them."""
        name = request.match_info["name"]
        self.note_viewer()
        try:
            parts = await self.views.lines(name, request.query)
        except NotFound as error:
            return problem(404, str(error))
        except UserError as error:
            return problem(503, str(error))
        kept = {"Content-Disposition": f'attachment; filename="{name}.jsonl"', "Content-Type": "application/x-ndjson"}
        response = hardened(web.StreamResponse(headers=kept))
        await response.prepare(request)
        for part in parts if request.method == "GET" else ():
            await response.write(part)
        await response.write_eof()
        return response

    async def screenshot(self, request: web.Request) -> web.Response:
        """Answer with a screenshot, which never changes under its digest."""
        sha256 = request.match_info["sha256"]
        if not HEX.fullmatch(sha256):
            return problem(404, "a screenshot is named by its sha256")
        try:
            image = await self.image(sha256)
        except NotFound as error:
            return problem(404, str(error))
        except UserError as error:
            return problem(503, str(error))
        return web.Response(body=image, content_type=media_type_of(image), headers={"Cache-Control": FOR_EVER})

    async def image(self, sha256: str) -> bytes:
        """Return a screenshot of whichever run has it: its digest is its name in each."""
        *others, last = self.sources
        for source in others:
            with contextlib.suppress(NotFound):
                return await source.screenshot(sha256)
        return await last.screenshot(sha256)

    def note_viewer(self) -> None:
        """Tell the sources that somebody looks."""
        for source in self.sources:
            source.note_viewer()

    async def live(self, request: web.Request) -> web.WebSocketResponse:
        """Send the header, and what ``watch`` names, whenever it has changed; messages of the client say nothing.

        ``watch`` is ``wall`` (the slots that changed), or ``trajectory`` with ``id`` (a stamp that changes with it).
        """
        socket = web.WebSocketResponse(heartbeat=20.0, max_msg_size=1024, compress=False)
        await socket.prepare(request)
        pusher = asyncio.create_task(self.push(socket, request.query), name="push")
        try:
            async for message in socket:
                if message.type is WSMsgType.ERROR:
                    break
        finally:
            pusher.cancel()
            await asyncio.gather(pusher, return_exceptions=True)
        return socket

    async def push(self, socket: web.WebSocketResponse, query: Query) -> None:
        """Send changes until the tab is gone. A slow tab delays its own messages only: nothing queues up for it."""
        before: dict[str, SlotTile] = {}
        with contextlib.suppress(ConnectionError, RuntimeError):
            while not socket.closed:
                self.note_viewer()
                message: dict[str, Any] = {"header": page_header(self.source)}
                if query.get("watch") == "wall":
                    tiles = self.views.grid.update(self.source.state)
                    message["slots"] = [tile for tile in tiles if before.get(tile.slot) != tile]
                    before = {tile.slot: tile for tile in tiles}
                elif query.get("watch") == "trajectory":
                    message["stamp"] = self.stamp(query.get("id", ""))
                await socket.send_str(msgspec.json.encode(message).decode())
                await asyncio.sleep(PUSH_S)

    def stamp(self, identity: str) -> str:
        """Return what changes whenever a trajectory does."""
        state = self.source.state
        groups = len(state.groups_of.get(identity, ()))
        return f"{state.newest_step.get(identity, -1)}/{identity in state.trajectories}/{groups}"


def problem(status: int, text: str) -> web.Response:
    """Return an error as JSON."""
    return web.Response(status=status, body=msgspec.json.encode({"error": text}), content_type="application/json")
