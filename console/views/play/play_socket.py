"""The WebSocket between a person's tab and what plays for them: gestures in, the episode out whenever it changes."""

from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from console.views.play.gestures import AnyGesture, UnknownGesture
from console.views.play.person_episode import page_view
from console.views.play.player import PersonClient
from dart_streams.background import run_beside
from dart_streams.config.text import MALFORMED
from dart_streams.errors import UserError

MESSAGE_BYTES = 16_384
PING_S = 30.0
"""A tab that answers no ping for half of this is gone."""


class Begin(msgspec.Struct, frozen=True, tag_field="do", tag="begin", forbid_unknown_fields=True):
    """The person wants to play an episode."""


class Act(msgspec.Struct, frozen=True, tag_field="do", tag="act", forbid_unknown_fields=True):
    """The person's gesture on the screen of a request."""

    request: str
    gesture: AnyGesture


class GiveBack(msgspec.Struct, frozen=True, tag_field="do", tag="give-back", forbid_unknown_fields=True):
    """The person leaves a rollout that they took over to its policy."""


async def open_socket(request: web.Request) -> web.WebSocketResponse:
    """Return the WebSocket of a request of a person's tab."""
    socket = web.WebSocketResponse(heartbeat=PING_S, max_msg_size=MESSAGE_BYTES, compress=False)
    await socket.prepare(request)
    return socket


class PlaySocket:
    """A tab's connection. The person is present as long as it is open."""

    def __init__(self, player: PersonClient, socket: web.WebSocketResponse) -> None:
        self.player = player
        self.socket = socket

    async def serve(self) -> None:
        """Take gestures of the tab, and send it what changes, until it is closed."""
        self.player.present = True
        try:
            async with run_beside(self.show()):
                async for message in self.socket:
                    if message.type is not WSMsgType.TEXT:
                        break
                    await self.apply(message.data)
        finally:
            self.player.present = False

    async def apply(self, text: str) -> None:
        """Apply a message of the tab; answer one that can't be applied with the reason."""
        try:
            wanted = msgspec.json.decode(text, type=Begin | Act | GiveBack)
            if isinstance(wanted, Begin):
                await self.player.begin()
            elif isinstance(wanted, GiveBack):
                await self.player.give_back("the person gave the episode back")
            else:
                await self.player.act(wanted.request, wanted.gesture)
        except (UnknownGesture, UserError, UnicodeEncodeError, *MALFORMED) as error:
            await self.socket.send_json({"problem": str(error)})

    def view(self) -> dict[str, Any]:
        """Return what the page shows now."""
        return page_view(self.player.task.task_id, self.player.episode, self.player.config.policy)

    async def show(self) -> None:
        """Send the episode whenever it changes, until the tab is closed."""
        sent: dict[str, Any] | None = None
        try:
            while not self.socket.closed:
                view = self.view()
                if view != sent:
                    sent = view
                    await self.socket.send_json(view)
                    continue
                async with self.player.changed:
                    if self.view() == sent:
                        await self.player.changed.wait()
        except ConnectionError:
            return
