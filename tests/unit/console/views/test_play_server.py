"""The server of a player's page: who is refused, and that one tab plays at a time."""

import contextlib

import pytest
from aiohttp import WSMsgType, WSServerHandshakeError

from console.views.page.assets import read_static
from console.views.page.guard import CSRF, Guard
from console.views.play.play_server import TAKEN, PlayServer
from console.views.play.player import PersonClient
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from tests.unit.console.views.test_page_server import TOKEN, browser_on

TASK = Task(environment="miniwob", page="click-test", seed=1, max_steps=5, split="train")
CLICK = {"do": "act", "request": "t/0/0", "gesture": {"kind": "click", "x": 1, "y": 1}}


@contextlib.asynccontextmanager
async def page():
    """Yield a client that has the cookie, and the player, who has no order yet and so no connection to a run."""
    player = PersonClient(parse({}), TASK)
    files = read_static("console.views.play")
    server = PlayServer(player, Guard(frozenset({"127.0.0.1"}), 1, tls=False, token=TOKEN), files)
    async with browser_on(server.application(), TOKEN) as client:
        yield client, player


def connect(client, origin: str | None = None):
    return client.ws_connect("/play", origin=origin or str(client.make_url("/")).rstrip("/"))


async def test_gestures_need_cookie_origin_and_the_pages_token():
    async with page() as (client, player):
        csrf = client.session.headers[CSRF]
        for given, origin, status in (("", None, 401), ("0" * 64, None, 401), (csrf, "http://evil.example", 403)):
            client.session.headers[CSRF] = given
            with pytest.raises(WSServerHandshakeError) as refused:
                await connect(client, origin)
            assert refused.value.status == status
        assert not player.present
        client.session.cookie_jar.clear()
        for path in ("/screenshot/" + "0" * 64, "/play"):
            assert (await client.get(path)).status == 401, path
        assert (await client.post("/play", data=b"{}")).status == 405


async def test_one_tab_plays_at_a_time_and_a_closed_one_makes_room():
    async with page() as (client, player):
        async with connect(client) as first:
            assert (await first.receive_json()) == {"stage": "idle", "task": TASK.task_id}
            assert player.present
            async with connect(client) as second:
                assert (await second.receive_json()) == {"problem": TAKEN}
                assert (await second.receive()).type is WSMsgType.CLOSE
            assert player.present, "the refused tab does not end the first one's presence"
        async with connect(client) as third:
            assert (await third.receive_json())["stage"] == "idle"


async def test_a_message_that_is_none_is_answered_with_the_reason():
    async with page() as (client, _), connect(client) as socket:
        await socket.receive_json()
        await socket.send_json(CLICK)  # there is no episode: it is ignored
        for message in ("no json", '{"do":"dance"}', '{"do":"act","request":"r","gesture":{"kind":"click"}}'):
            await socket.send_str(message)
            assert "problem" in await socket.receive_json()


async def test_only_screens_of_the_episode_are_served():
    async with page() as (client, _):
        answer = await client.get("/screenshot/" + "0" * 64)
        assert (answer.status, await answer.json()) == (404, {"error": "this episode has no such screenshot"})
