"""The HTTP server of a player's page: its files, screenshots, and one WebSocket that carries gestures.

One tab plays at a time, and while it is connected the person is present. The guard of the run's page checks every
request.
"""

from collections.abc import Mapping

from aiohttp import WSCloseCode, web

from console.views.page.assets import Asset, media_type_of, read_static
from console.views.page.guard import Guard
from console.views.page.server import IMMUTABLE, answer_file, errors_as_json
from console.views.play.play_socket import PlaySocket, open_socket
from console.views.play.player import PersonClient

SHARED = ("/style.css", "/icon.svg", "/dom.js")
"""Files of the run's page that this page uses."""
TAKEN = "this demonstration is open in another tab: close that one first"


def load_play_files() -> dict[str, Asset]:
    """Return the files of this page by their paths."""
    shared = read_static("console.views.page")
    return {path: shared[path] for path in SHARED} | read_static("console.views.play")


class PlayServer:
    """The routes of a player's page."""

    def __init__(self, player: PersonClient, guard: Guard, files: Mapping[str, Asset]) -> None:
        self.player = player
        self.guard = guard
        self.files = files

    def application(self) -> web.Application:
        """Return the application: the guard checks every request before its route."""
        app = web.Application(middlewares=[self.guard.middleware(), errors_as_json])
        app.router.add_get("/play", self.play)
        app.router.add_get("/screenshot/{sha256}", self.screenshot)
        app.router.add_get("/{file:.*}", self.file)
        return app

    async def file(self, request: web.Request) -> web.Response:
        """Answer with one of the page's files."""
        return answer_file(self.files, request.path)

    async def screenshot(self, request: web.Request) -> web.Response:
        """Answer with a screenshot of the episode."""
        image = await self.player.screenshot(request.match_info["sha256"])
        return web.Response(body=image, content_type=media_type_of(image), headers={"Cache-Control": IMMUTABLE})

    async def play(self, request: web.Request) -> web.WebSocketResponse:
        """Take gestures of one tab, and send it what changes."""
        socket = await open_socket(request)
        if self.player.present:
            await socket.send_json({"problem": TAKEN})
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"taken")
            return socket
        await PlaySocket(self.player, socket).serve()
        return socket
