"""Who may give feedback on the page, what is refused with which sentence, and that refusals publish nothing."""

import asyncio
import json
import urllib.request
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from console.runs import feedback
from console.runs.bundle import Bundle
from console.runs.run_log import LogRecord, ObservationHeader, OrderHeader, RecordMetadata
from console.runs.run_state import RunState
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from console.views.page.feedback_intake import MAX_BODY, FeedbackIntake, SaidFeedback, make_event
from console.views.page.guard import CSRF, Guard, WriteRight
from console.views.page.live_source import LiveSource
from console.views.page.server import PageServer
from dart_streams.config import parse
from dart_streams.errors import UserError
from tests import events
from tests.unit.console.views.test_page_server import GOLDEN, TOKEN, browser_on

WRITE = "the-token-for-feedback"
SAID = {"kind": "judgement", "trajectory_id": "t-1", "author": "ann", "judgement": "good"}
PLAYED = events.trajectory("t-1", task_id="t/a#1", steps=2)
OPEN = ObservationHeader("t-open", OrderHeader("o-2", "train", "t/a#1"), 0, None, "env-0", 1, None, None)


def run_source(**changes: Any) -> LiveSource:
    """Return a run that has ended, whose broker does not answer."""
    config = parse({"bus": {"servers": "127.0.0.1:1", "wait_s": 0.2}, "feedback": {"enabled": True}} | changes)
    exam = events.trajectory("t-eval", purpose="eval", order_id="o-3")
    metadata = RecordMetadata("any", 0, 0, 0)
    state = RunState().fold(LogRecord(metadata, event, b"") for event in (PLAYED, exam, OPEN))
    return LiveSource(config, None, ended=(state, []))


def client_of(right: WriteRight | None, token: str = ""):
    """Return a client of a run's page, that has opened it with a token."""
    source = run_source()
    intake = FeedbackIntake(source, "operator") if right else None
    guard = Guard(frozenset({"gui.example"}), 1, tls=False, token=TOKEN, right=right)
    server = PageServer(source, guard, load_assets(None), None, intake)
    return browser_on(server.application(), token)


@pytest.fixture
async def writer():
    async with client_of(WriteRight(1, WRITE), WRITE) as client:
        yield client


@pytest.fixture
def published(monkeypatch) -> list:
    """Notes what is published; refusals have to leave it empty."""
    given: list = []

    async def note(_config, published_now) -> None:
        given.extend(published_now)

    monkeypatch.setattr(feedback, "publish", note)
    return given


async def give(client: TestClient, said: Any = None, **headers: str | None):
    """Send a feedback as the page does; a header of None is left out."""
    own = {"Origin": f"http://{client.host}:{client.port}", "Content-Type": "application/json"}
    sent = {name: value for name, value in (own | headers).items() if value is not None}
    body = said if isinstance(said, bytes) else json.dumps(SAID if said is None else said).encode()
    return await client.post("/api/feedback", data=body, headers=sent)


async def test_a_viewer_with_the_right_gives_feedback_and_is_given_its_proof(writer: TestClient, published: list):
    rights = await (await writer.get("/api/rights")).json()
    assert rights == {"feedback": True, "author": "operator"}
    answer = await give(writer)
    assert answer.status == 201, await answer.text()
    [event] = published
    assert (await answer.json())["feedback_id"] == event.feedback_id
    assert (event.task_id, event.judgement, event.author) == ("t/a#1", "good", "ann")


@pytest.mark.parametrize("token", [TOKEN, WRITE])
async def test_who_listens_on_another_port_gets_nothing_that_opens_the_page(token: str):
    received: list[str] = []

    async def hear(request: web.Request) -> web.Response:
        received.append(request.headers.get("Cookie", ""))
        return web.Response()

    other = web.Application()
    other.router.add_get("/", hear)
    async with client_of(WriteRight(1, WRITE)) as client, TestClient(TestServer(other)) as listener:
        viewer = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        for port in (f"{client.port}/?token={token}", f"{listener.port}/"):
            await asyncio.to_thread(viewer.open, f"http://127.0.0.1:{port}", None, 60)
        stolen = {"Cookie": received[0]}  # Browsers send a cookie to every port.
        assert (await client.get("/app.js", headers=stolen)).status == 200, "the page's files are no secret"
        for path in ("/api/run", "/api/rights", "/api/live", "/export/log", "/metrics", "/api/nosuch"):
            assert (await client.get(path, headers=stolen)).status == 401, path
        async with client_of(WriteRight(1, WRITE)) as restarted:
            assert (await restarted.get("/app.js", headers=stolen)).status == 401, "a port may be taken in between"


@pytest.mark.parametrize("token", ["", TOKEN])
async def test_a_viewer_without_the_right_gives_nothing(token: str, published: list):
    async with client_of(WriteRight(1, WRITE), token) as client:
        answer = await give(client)
        assert answer.status == (403 if token else 401)
        assert "open the" in await answer.text()
        bearer = await give(client, Authorization=f"Bearer {TOKEN}")
        assert bearer.status == 403, "the token that only reads"
        assert "only reads" in await bearer.text()
        if token:
            assert await (await client.get("/api/rights")).json() == {"feedback": False}
    assert published == []


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        ({"Origin": "http://evil.example"}, 403, "another origin"),
        ({"Origin": "null"}, 403, "another origin"),
        ({"Origin": None}, 403, "Origin"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "another site"),
        ({"Sec-Fetch-Site": "same-site"}, 403, "another site"),
        ({"Host": "evil.example"}, 421, "not one of the page's own"),
        ({CSRF: ""}, 401, "open the address"),
        ({CSRF: WRITE}, 401, "open the address"),
        ({CSRF: WriteRight(1, "of another start").csrf}, 401, "open the address"),
        ({CSRF: Guard(frozenset(), 1, tls=False, token=TOKEN).reading.csrf}, 401, "open the address"),
        ({"Content-Type": "text/plain"}, 415, "application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
    ],
)
async def test_what_this_page_did_not_send_is_refused(
    writer: TestClient, published: list, headers: dict[str, str | None], status: int, reason: str
):
    answer = await give(writer, **headers)
    assert (answer.status, published) == (status, [])
    assert reason in await answer.text()


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        (SAID | {"trajectory_id": "t-9"}, 404, "no trajectory 't-9' has ended"),
        (SAID | {"trajectory_id": "t-"}, 404, "no trajectory"),
        (SAID | {"trajectory_id": "t-open"}, 400, "under way"),
        (SAID | {"trajectory_id": "t-eval"}, 400, "purpose eval"),
        (SAID | {"judgement": "so-so"}, 400, "judgement"),
        (SAID | {"judgement": ""}, 400, "judgement"),
        (SAID | {"author": ""}, 400, "author"),
        (SAID | {"note": "n" * 501}, 400, "note"),
        (SAID | {"feedback_id": "forged"}, 400, "feedback_id"),
        (SAID | {"kind": "demonstration"}, 400, "kind"),
        (SAID | {"kind": "note"}, 400, "needs a text"),
        (SAID | {"kind": "correction", "action": "wait()"}, 400, "needs the step"),
        (SAID | {"kind": "correction", "step": 0, "action": "push it"}, 400, "is no action"),
        (SAID | {"kind": "correction", "step": 2, "action": "wait()"}, 400, "has 2 actions"),
        (SAID | {"kind": "correction", "step": -1, "action": "wait()"}, 400, "step"),
        ({}, 400, "can't be read"),
        ([], 400, "can't be read"),
        (b"", 400, "can't be read"),
        (b"\xff\xfe", 400, "can't be read"),
        (b'{"x":' + b"[" * 5000, 400, "can't be read"),
        (json.dumps(SAID | {"note": "n" * MAX_BODY}).encode(), 413, "at most 32 KiB"),
    ],
)
async def test_what_can_not_be_given_is_refused_with_a_sentence(
    writer: TestClient, published: list, said: Any, status: int, reason: str
):
    answer = await give(writer, said)
    text = await answer.text()
    assert (answer.status, published) == (status, []), text
    assert reason in text


async def test_the_largest_feedback_fits(writer: TestClient, published: list):
    text = "\u0001" * 2000
    said = SAID | {"kind": "correction", "step": 1, "action": f"type(content='{text}')", "note": "\U0001f600" * 500}
    answer = await give(writer, said)
    assert (answer.status, len(published)) == (201, 1), await answer.text()


async def test_a_broker_that_does_not_answer_is_an_error_of_the_service(writer: TestClient):
    answer = await give(writer)
    assert answer.status == 503
    assert "127.0.0.1:1" in (await answer.json())["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_page_without_the_option_only_reads_whatever_the_token(method: str, published: list):
    async with client_of(None, TOKEN) as client:
        answer = await client.request(method, "/api/feedback", json=SAID)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
        assert await (await client.get("/api/rights")).json() == {"feedback": False}
        assert (await client.get("/", params={"token": WRITE})).status == 401
    assert published == []


@pytest.mark.parametrize("path", ["/", "/api/run", "/api/trajectory", "/api/rights", "/api/feedback/x", "/api/live"])
async def test_the_right_opens_one_path(writer: TestClient, path: str):
    assert (await writer.post(path, json=SAID)).status == 405
    assert (await writer.put("/api/feedback", json=SAID)).status == 405


def test_a_bundle_and_a_run_that_does_not_train_on_feedback_have_no_intake():
    with pytest.raises(UserError, match="bundle takes no feedback"):
        FeedbackIntake(BundleSource(Bundle(GOLDEN)), "ann")
    with pytest.raises(UserError, match=r"feedback.enabled = true"):
        FeedbackIntake(run_source(feedback={"enabled": False}), "ann")


def test_the_page_gives_what_the_command_line_gives():
    said = SaidFeedback(kind="correction", trajectory_id="t-1", author="ann", step=1, action="wait()", note="why")
    assert make_event(said, PLAYED, 5) == feedback.make_correction(PLAYED, 1, "wait()", "ann", 5, "why")
    noted = SaidFeedback(kind="note", trajectory_id="t-1", author="ann", note="why")
    assert make_event(noted, PLAYED, 5) == feedback.make_note(PLAYED, "why", "ann", 5)
