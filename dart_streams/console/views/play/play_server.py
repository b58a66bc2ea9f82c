"""The HTTP server of a player's page: its files, screenshots, and one WebSocket that carries gestures.

One tab plays at a time, and while it is connected the person is present. The guard of the run's page checks every
request. Gestures also need a token that only a script of this page can read.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from dart_streams.background import run_beside
from dart_streams.connection.auth import derive_token, is_same_token
from dart_streams.console.views.page.assets import Asset, media_type_of, read_static
from dart_streams.console.views.page.guard import Guard
from dart_streams.console.views.page.server import IMMUTABLE, answer_file, errors_as_json
from dart_streams.console.views.play.gestures import AnyGesture, UnknownGesture
from dart_streams.console.views.play.person_episode import page_view
from dart_streams.console.views.play.player import PersonClient

MESSAGE_BYTES = 16_384
PING_S = 5.0
"""A tab that answers no ping for half of this is gone."""
SHARED = ("/style.css", "/icon.svg", "/dom.js")
"""Files of the run's page that this page uses."""
TAKEN = "this demonstration is open in another tab: close that one first"


def load_play_files() -> dict[str, Asset]:
    """Return the files of this page by their paths."""
    shared = read_static("dart_streams.console.views.page")
    return {path: shared[path] for path in SHARED} | read_static("dart_streams.console.views.play")


class Begin(msgspec.Struct, frozen=True, tag_field="do", tag="begin", forbid_unknown_fields=True):
    """The person wants to play an episode."""


class Act(msgspec.Struct, frozen=True, tag_field="do", tag="act", forbid_unknown_fields=True):
    """The person's gesture on the screen of a request."""

    request: str
    gesture: AnyGesture


class PlayServer:
    """The routes of a player's page."""

    def __init__(self, player: PersonClient, guard: Guard, files: Mapping[str, Asset]) -> None:
        self.player = player
        self.guard = guard
        self.files = files
        self.csrf = derive_token(guard.session, "gestures")

    def application(self) -> web.Application:
        """Return the application: the guard checks every request before its route."""
        app = web.Application(middlewares=[self.guard.middleware(), errors_as_json])
        app.router.add_get("/csrf", self.give_csrf)
        app.router.add_get("/play", self.play)
        app.router.add_get("/screenshot/{sha256}", self.screenshot)
        app.router.add_get("/{file:.*}", self.file)
        return app

    async def file(self, request: web.Request) -> web.Response:
        """Answer with one of the page's files."""
        return answer_file(self.files, request.path)

    async def give_csrf(self, request: web.Request) -> web.Response:
        """Answer with the token of gestures, which a page of another origin cannot read."""
        return web.json_response({"csrf": self.csrf})

    async def screenshot(self, request: web.Request) -> web.Response:
        """Answer with a screenshot of the episode."""
        image = await self.player.screenshot(request.match_info["sha256"])
        return web.Response(body=image, content_type=media_type_of(image), headers={"Cache-Control": IMMUTABLE})

    async def play(self, request: web.Request) -> web.WebSocketResponse | web.Response:
        """Take gestures of one tab, and send it what changes."""
        if not is_same_token(request.query.get("csrf", ""), self.csrf):
            return web.Response(status=403, text="gestures need the token of this page: reload it")
        socket = web.WebSocketResponse(heartbeat=PING_S, max_msg_size=MESSAGE_BYTES, compress=False)
        await socket.prepare(request)
        if self.player.present:
            await socket.send_json({"problem": TAKEN})
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"taken")
            return socket
        self.player.present = True
        try:
            async with run_beside(self.show(socket)):
                async for message in socket:
                    if message.type is not WSMsgType.TEXT:
                        break
                    await self.apply(socket, message.data)
        finally:
            self.player.present = False
        return socket

    async def apply(self, socket: web.WebSocketResponse, text: str) -> None:
        """Apply a message of the tab; answer one that can't be applied with the reason."""
        try:
            wanted = msgspec.json.decode(text, type=Begin | Act)
            if isinstance(wanted, Begin):
                await self.player.begin()
            else:
                await self.player.act(wanted.request, wanted.gesture)
        except (UnknownGesture, msgspec.DecodeError, UnicodeEncodeError) as error:
            await socket.send_json({"problem": str(error)})

    def view(self) -> dict[str, Any]:
        """Return what the page shows now."""
        return page_view(self.player.task.task_id, self.player.episode, self.player.config.policy)

    async def show(self, socket: web.WebSocketResponse) -> None:
        """Send the episode whenever it changes, until the tab is closed."""
        sent: dict[str, Any] | None = None
        try:
            while not socket.closed:
                view = self.view()
                if view != sent:
                    sent = view
                    await socket.send_json(view)
                    continue
                async with self.player.changed:
                    if self.view() == sent:
                        await self.player.changed.wait()
        except ConnectionError:
            return
