"""The route of people who take rollouts over: who is refused, and which rollouts can't be taken."""

import contextlib
from typing import Any, cast

import pytest
from aiohttp import WSMsgType, WSServerHandshakeError, web

from console.runs.run_state import RunState
from console.views.page.guard import CSRF, Guard, WriteRight
from console.views.page.take_over_route import PAGE, TakeOverRoute, load_take_over_files
from dart_streams.config import parse
from tests import events
from tests.unit.console.views.test_page_server import browser_on
from topics.observations import Observation
from topics.rollout_orders import PersonLease

TOKEN, WRITES = "the-token-that-reads", "the-token-that-writes"
LEASE = PersonLease(person="p", lease_ms=1000)


class Source:
    """A run with episodes under way, of which nothing else is read."""

    def __init__(self, *shown: Observation) -> None:
        self.config = parse({"feedback": {"enabled": True}})
        self.state = RunState()
        self.shown = {one.trajectory_id: one for one in shown}
        self.state.open = cast(Any, {**self.shown})

    def note_viewer(self) -> None:
        return

    async def steps(self, trajectory_id: str) -> list[Observation]:
        return [self.shown[trajectory_id]] if trajectory_id != "unstored" else []


def under_way(name: str, **order: Any) -> Observation:
    return events.observation(trajectory_id=name, order=events.rollout_order(name, **order))


@contextlib.asynccontextmanager
async def page(token: str = WRITES):
    """Yield a client that has the cookie of a token, and its proof."""
    guard = Guard(frozenset({"127.0.0.1"}), 1, tls=False, token=TOKEN, right=WriteRight(1, WRITES))
    source = Source(
        under_way("unstored"),
        under_way("held-out", purpose="eval"),
        under_way("shown", purpose="demonstration", lease=LEASE),
    )
    source.state.ended["over"] = None
    route = TakeOverRoute(cast(Any, source), guard, "ann")
    app = web.Application(middlewares=[guard.middleware()])
    app.router.add_get("/api/take-over", route.open)
    async with browser_on(app, token) as client:
        yield client, client.session.headers.pop(CSRF)


def connect(client: Any, csrf: str, trajectory: str = "t", origin: str | None = None) -> Any:
    own = str(client.make_url("/")).rstrip("/")
    given = {"csrf": csrf, "trajectory": trajectory}
    return client.ws_connect("/api/take-over", params=given, origin=origin or own)


async def test_a_take_over_needs_the_right_cookie_origin_and_the_pages_token():
    async with page() as (client, csrf):
        for given, origin, status in (("", None, 401), ("0" * 64, None, 401), (csrf, "http://evil.example", 403)):
            with pytest.raises(WSServerHandshakeError) as refused:
                await connect(client, given, origin=origin)
            assert refused.value.status == status
        client.session.cookie_jar.clear()
        with pytest.raises(WSServerHandshakeError) as refused:
            await connect(client, csrf)
        assert refused.value.status == 401
    async with page(TOKEN) as (client, csrf):
        with pytest.raises(WSServerHandshakeError) as refused:
            await connect(client, csrf)
        assert refused.value.status == 403


@pytest.mark.parametrize(
    ("trajectory", "reason"),
    [
        ("unknown", "no episode of this id"),
        ("over", "this episode has ended"),
        ("unstored", "not stored yet"),
        ("held-out", "only rollouts that the policy plays for training"),
        ("shown", "only rollouts that the policy plays for training"),
    ],
)
async def test_what_can_not_be_taken_over_is_refused_in_words(trajectory: str, reason: str):
    async with page() as (client, csrf), connect(client, csrf, trajectory) as socket:
        answer = await socket.receive_json()
        assert reason in answer["problem"] and answer["final"]
        assert (await socket.receive()).type is WSMsgType.CLOSE


def test_the_players_page_has_a_place_beside_the_runs():
    files = load_take_over_files()
    assert {PAGE, "/play.js", "/play.css"} <= files.keys()
    assert "/" not in files
