"""The page's route of a person who takes over a running rollout: who may, what is refused in words, and its files."""

from aiohttp import WSCloseCode, web

from console.views.page.assets import Asset, read_static
from console.views.page.guard import Guard
from console.views.page.source import RunSource
from console.views.play.play_socket import PlaySocket, open_socket
from console.views.play.take_over import TakeOverClient
from dart_streams.background import run_beside
from dart_streams.errors import ServiceUnavailable, UserError
from workers.env.take_overs import may_be_taken

PAGE = "/play.html"
MOST_AUTHOR = 500


def load_take_over_files() -> dict[str, Asset]:
    """Return the files of the player's page by path, beside those of the run's page."""
    files = read_static("console.views.play")
    return {PAGE if path == "/" else path: asset for path, asset in files.items()}


class TakeOverRoute:
    """Serves the people who take rollouts of one run over."""

    def __init__(self, source: RunSource, guard: Guard, author: str) -> None:
        self.source = source
        self.guard = guard
        self.author = author

    async def open(self, request: web.Request) -> web.WebSocketResponse | web.Response:
        """Let a viewer with the write right play on in a rollout, until their tab is closed."""
        right = self.guard.right
        if right is None or not right.knows(request):
            return web.Response(status=403, text="this address only reads: open the one for feedback")
        self.source.note_viewer()
        socket = await open_socket(request)
        try:
            player = await self.player_of(request.query.get("trajectory", ""), request.query.get("author", ""))
            async with player:
                await self.play(player, socket)
        except (UserError, ServiceUnavailable) as error:
            await socket.send_json({"problem": str(error), "final": True})
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"refused")
        return socket

    async def player_of(self, trajectory_id: str, author: str) -> TakeOverClient:
        """Return what plays for a person; raise UserError for a rollout that can't be taken over."""
        state = self.source.state
        if trajectory_id not in state.open:
            ended = trajectory_id in state.trajectories or trajectory_id in state.ended
            raise UserError("this episode has ended" if ended else "no episode of this id is under way")
        shown = await self.source.steps(trajectory_id)
        if not shown:
            raise UserError("the first screen is not stored yet: try again")
        if not may_be_taken(shown[0].order):
            raise UserError("only rollouts that the policy plays for training can be taken over")
        return TakeOverClient(self.source.config, shown, author[:MOST_AUTHOR].strip() or self.author)

    async def play(self, player: TakeOverClient, socket: web.WebSocketResponse) -> None:
        """Play until the tab is closed; then the rollout goes back to its policy."""
        async with run_beside(player.read(), player.show_life(), player.look_back()):
            await player.begin()
            try:
                await PlaySocket(player, socket).serve()
            finally:
                await player.give_back("the tab was closed")
