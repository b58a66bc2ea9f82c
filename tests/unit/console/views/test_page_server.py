"""The page's server: who is refused, what the views say, and that texts and ids stay what they are."""

import asyncio
import contextlib
import hashlib
import json
import re
import tracemalloc
from pathlib import Path

import pytest
from aiohttp import CookieJar, WSServerHandshakeError, web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from console.runs.bundle import Bundle, BundleRecord
from console.views.page import export, records
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from console.views.page.guard import CSRF, Guard
from console.views.page.server import PageServer
from tests.integration.recorded_run import record, settings
from tests.unit.console.bundles.test_replay import altered, edit

GOLDEN = Path(__file__).parents[2] / "golden" / "bundle.v1.dart"
TOKEN = "the-token-of-this-start"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return record(tmp_path_factory.mktemp("page") / "run.dart", 90, settings(step_ms=1))


@contextlib.asynccontextmanager
async def browser_on(application: web.Application, token: str = ""):
    """Yield a client of a page, which has opened the printed address if it has a ``token``."""
    async with TestClient(TestServer(application), cookie_jar=CookieJar(unsafe=True)) as client:
        if token:
            opened = await client.get("/", params={"token": token})
            assert opened.status == 200
            # What a script keeps in the browser, and sends with each request.
            client.session.headers[CSRF] = re.findall(r'data-csrf="(\w+)"', await opened.text())[0]
        yield client


@contextlib.asynccontextmanager
async def client_of(bundle: Path | BundleSource, other: BundleSource | None = None, token: str = ""):
    """Yield a client of a server on a bundle; without a token it has no cookie."""
    source = bundle if isinstance(bundle, BundleSource) else BundleSource(Bundle(bundle)).read()
    server = PageServer(source, Guard(frozenset({"gui.example"}), 1, tls=False, token=TOKEN), load_assets(None), other)
    async with browser_on(server.application(), token) as client:
        yield client


def signed_in(bundle: Path | BundleSource, other: BundleSource | None = None):
    """Return a client that has opened the printed address."""
    return client_of(bundle, other, TOKEN)


@pytest.fixture
async def golden():
    async with signed_in(GOLDEN) as client:
        yield client


@pytest.fixture
async def page(recorded: Path):
    async with signed_in(recorded) as client:
        yield client


async def view(client: TestClient, name: str, **query: str):
    answer = await client.get(f"/api/{name}", params=query)
    assert answer.status == 200, await answer.text()
    return await answer.json()


async def test_the_token_becomes_a_cookie_and_leaves_the_address():
    async with client_of(GOLDEN) as client:
        answer = await client.get("/", params={"token": TOKEN})
        assert 'data-place="/"' in await answer.text(), "a script goes on to it"
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        assert Guard(frozenset(), 1, tls=False, token=TOKEN).reading.csrf not in cookie


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/run", "/api/live", "/screenshot/" + "0" * 64])
@pytest.mark.parametrize("given", ["", "wrong", TOKEN + "x", TOKEN[:-1]])
async def test_nothing_is_given_without_the_token(path: str, given: str):
    async with client_of(GOLDEN) as client:
        answer = await client.get(path, params={"token": given} if given else {}, allow_redirects=False)
        assert answer.status == 401
        assert "Set-Cookie" not in answer.headers


async def test_a_new_browser_is_asked_for_the_token():
    async with client_of(GOLDEN) as client:
        for given, reason in ({}, "has not opened the page"), ({"token": "old"}, "of an earlier start"):
            answer = await client.get("/", params=given)
            text = await answer.text()
            assert (answer.status, answer.content_type) == (401, "text/html")
            assert reason in text
            assert '<input id="token" name="token"' in text
            assert "form-action 'self'" in answer.headers["Content-Security-Policy"]
            assert "script" not in answer.headers["Content-Security-Policy"]


async def test_a_script_gives_the_token_as_its_bearer():
    async with client_of(GOLDEN) as client:
        assert (await client.get("/api/run", headers={"Authorization": f"Bearer {TOKEN}"})).status == 200
        assert (await client.get("/api/run", headers={"Authorization": "Bearer x"})).status == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "localhost@evil.example", ""]
)
async def test_a_name_that_was_rebound_to_this_address_is_refused(golden: TestClient, host: str):
    for path in ("/", "/api/run", "/api/live"):
        assert (await golden.get(path, headers={"Host": host})).status == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "[::1]:8765", "gui.example", "gui.example:443"])
async def test_own_names_are_answered_whatever_the_port(golden: TestClient, host: str):
    headers = {"Host": host, "Authorization": f"Bearer {TOKEN}"}
    assert (await golden.get("/api/run", headers=headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_other_pages_are_refused_even_with_the_cookie(golden: TestClient, headers: dict[str, str]):
    assert (await golden.get("/api/run", headers=headers)).status == 403


async def test_a_socket_of_another_origin_is_refused_and_one_of_this_page_is_not(golden: TestClient):
    for origin in ("http://evil.example", ""):
        with pytest.raises(WSServerHandshakeError) as refused:
            await golden.ws_connect("/api/live", headers={"Origin": origin} if origin else {})
        assert refused.value.status == 403
    host = f"http://{golden.host}:{golden.port}"
    async with golden.ws_connect("/api/live?watch=wall", headers={"Origin": host}) as socket:
        assert (await socket.receive_json())["header"]["kind"] == "bundle"


@pytest.mark.parametrize(("behind_proxy", "status"), [(True, 200), (False, 403)])
async def test_behind_a_proxy_origins_are_https_and_cookies_need_tls(behind_proxy: bool, status: int):
    source = BundleSource(Bundle(GOLDEN)).read()
    guard = Guard(frozenset({"gui.example"}), 1, tls=False, token=TOKEN, behind_proxy=behind_proxy)
    headers = {"Host": "gui.example", "Authorization": f"Bearer {TOKEN}"}
    async with TestClient(TestServer(PageServer(source, guard, load_assets(None), None).application())) as client:
        own = await client.get("/api/run", headers=headers | {"Origin": "https://gui.example"})
        other = await client.get("/api/run", headers=headers | {"Origin": "https://evil.example"})
        assert (own.status, other.status) == (status, 403)
        for host, published in (("gui.example", behind_proxy), ("localhost:9", False), ("127.0.0.1", False)):
            opened = await client.get("/", params={"token": TOKEN}, headers={"Host": host})
            secure = "Secure" in opened.headers["Set-Cookie"], "Strict-Transport-Security" in opened.headers
            assert secure == (published, published), "a loopback name has no certificate"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
async def test_no_method_but_reading_ones_is_known(golden: TestClient, method: str):
    answer = await golden.request(method, "/api/run")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


async def test_head_has_no_body(golden: TestClient):
    answer = await golden.head("/app.js")
    assert (answer.status, await answer.read()) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        *("/../server.py", "/..%2fserver.py", "/%2e%2e/%2e%2e/etc/passwd", "/static/app.js", "//etc/passwd"),
        *("/vendor/../app.js", "/screenshot/..%2f..%2fetc", "/screenshot/" + "g" * 64, "/api/../app.js"),
    ],
)
async def test_no_path_reaches_the_disk(golden: TestClient, path: str):
    from yarl import URL

    answer = await golden.session.get(URL(f"http://{golden.host}:{golden.port}{path}", encoded=True))
    assert answer.status == 404
    assert b"root:" not in await answer.read()


@given(st.text(max_size=40))
def test_no_host_of_any_kind_but_an_own_one_is_allowed(host: str):
    guard = Guard(frozenset({"gui.example"}), 1, tls=False)
    if guard.allows(host):
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
        assert name.strip("[]").rstrip(":").lower() in {"gui.example", "localhost", "::1"} or name.startswith("127.")


async def test_every_answer_binds_the_browser(golden: TestClient):
    for path in ("/", "/app.js", "/api/run", "/api/nothing", "/nothing", "/screenshot/x"):
        headers = (await golden.get(path)).headers
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


async def test_the_page_loads_nothing_from_elsewhere_and_writes_no_markup():
    for name, asset in load_assets(None).items():
        text = asset.data.decode()
        assert "http://" not in text.replace("http://www.w3.org/", "") or name == "/icon.svg", name
        assert "https://" not in text
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, f"{name} has {word}"


async def test_the_wall_has_each_slot_once_with_its_last_episode(page: TestClient):
    tiles = await view(page, "wall")
    assert [tile["slot"] for tile in tiles] == [f"env-0/{number}" for number in range(8)]
    assert {tile["state"] for tile in tiles} == {"ended"}
    assert all(len(tile["screenshot"]) == 64 and tile["points"] for tile in tiles)
    rows = (await view(page, "trajectories"))["rows"]
    newest = {row["trajectory_id"] for row in rows[:16]}
    assert {tile["trajectory_id"] for tile in tiles} <= newest


async def test_a_screenshot_is_what_its_digest_says(page: TestClient):
    sha = (await view(page, "wall"))[0]["screenshot"]
    answer = await page.get(f"/screenshot/{sha}")
    assert (answer.status, answer.content_type) == (200, "image/png")
    assert hashlib.sha256(await answer.read()).hexdigest() == sha
    assert "immutable" in answer.headers["Cache-Control"]
    assert (await page.get("/screenshot/" + "0" * 64)).status == 404


async def test_an_action_is_drawn_on_the_screen_it_was_decided_on(page: TestClient):
    identity = (await view(page, "trajectories", outcome="success"))["rows"][0]["trajectory_id"]
    found = await view(page, "trajectory", id=identity)
    assert found["running"] is False
    assert found["steps"][0]["points"] == []
    for step in found["steps"][1:]:
        x, y = step["event"]["taken"]["action"].partition("(")[2].rpartition("(")[2].partition(")")[0].split(",")
        assert step["points"] == [{"x": pytest.approx(int(x) * 160 / 168), "y": pytest.approx(int(y) * 210 / 224)}]


async def test_from_an_optimizer_step_down_to_a_screen_and_back(page: TestClient):
    steps = await view(page, "steps")
    assert steps["steps"] == sorted(steps["steps"])
    step = await view(page, "step", id=str(steps["steps"][0]))
    group = await view(page, "group", id=step["groups"][0]["group_id"])
    assert group["train_steps"] == [steps["steps"][0]]
    member = group["members"][0]
    trajectory = await view(page, "trajectory", id=member["trajectory_id"])
    assert [g["train_steps"] for g in trajectory["groups"]] == [[steps["steps"][0]]]
    assert trajectory["groups"][0]["member"] == member["curated"]
    assert step["served"] == {"rollout-0": step["served"]["rollout-0"]}


async def test_a_group_of_equal_rewards_is_marked(page: TestClient):
    rows = (await view(page, "trajectories", purpose="train"))["rows"]
    groups = [await view(page, "group", id=name) for name in dict.fromkeys(row["group_id"] for row in rows)]
    for group in groups:
        rewards = {one["finished"]["reward"] for one in group["members"] if one["finished"] is not None} - {None}
        assert group["equal"] == (len(rewards) == 1 and len(group["members"]) > 1)
        assert group["curated_ms"] is None or not group["equal"], "a group of equal rewards is never curated"
    assert any(group["equal"] for group in groups)


async def test_any_id_is_found_on_its_page(page: TestClient):
    row = (await view(page, "trajectories", purpose="train"))["rows"][0]
    identity = row["trajectory_id"]
    assert await view(page, "find", id=identity) == {"page": "trajectory", "id": identity}
    assert await view(page, "find", id=f"{identity}/0/0") == {"page": "trajectory", "id": identity, "step": "0"}
    assert (await view(page, "find", id=row["group_id"]))["page"] == "group"
    assert (await view(page, "find", id=row["task_id"]))["page"] == "task"
    assert await view(page, "find", id="1") == {"page": "step", "id": "1"}
    assert (await view(page, "find", id="v1"))["page"] == "step"
    answer = await page.get("/api/find", params={"id": "<script>"})
    assert answer.status == 404


async def test_the_log_is_searched_in_keys_and_values(page: TestClient):
    identity = (await view(page, "trajectories"))["rows"][0]["trajectory_id"]
    found = await view(page, "log", topic="observations", q=identity)
    assert found
    assert all(record["key"] == identity for record in found)
    assert [record["offset"] for record in found] == sorted((r["offset"] for r in found), reverse=True)
    assert await view(page, "log", topic="observations", q="no such text") == []
    assert (await page.get("/api/log", params={"topic": "../secrets"})).status == 404


@pytest.mark.parametrize("name", ["trajectory", "group", "task", "step", "prompt"])
async def test_what_is_not_there_is_a_sentence(page: TestClient, name: str):
    for identity in ("nothing", "", "x" * 5000):
        answer = await page.get(f"/api/{name}", params={"id": identity})
        assert answer.status == 404
        assert (await answer.json())["error"]


async def test_an_old_bundle_without_observations_has_every_page(golden: TestClient):
    for name in ("run", "wall", "trajectories", "steps", "tasks", "time", "lag", "dead-letters"):
        await view(golden, name)


async def test_a_bundle_with_a_wrong_clock_and_a_broken_step_is_shown(recorded: Path):
    def spoil(records: list[BundleRecord]) -> list[BundleRecord]:
        at = next(record.offset for record in records if b'"versions":[{' in record.value)
        event = json.loads(records[at].value)
        event["taken"]["versions"][0].pop("version")
        edit(records, at, taken=event["taken"])
        return edit(records, records[-1].offset, at_ms=event["at_ms"] + 100 * 86_400_000)

    source = BundleSource(altered(recorded, "observations", spoil)).read()
    async with signed_in(source) as client:
        tracemalloc.start()
        try:
            await view(client, "time")
            await view(client, "report")
            assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
        finally:
            tracemalloc.stop()
        for identity in source.state.observations:
            await view(client, "trajectory", id=identity)


async def test_a_slow_tab_is_sent_the_newest_and_no_queue(page: TestClient):
    host = f"http://{page.host}:{page.port}"
    async with page.ws_connect("/api/live?watch=wall", headers={"Origin": host}) as socket:
        first = await socket.receive_json()
        assert len(first["slots"]) == 8
        async with asyncio.timeout(60):
            second = await socket.receive_json()
        assert second["slots"] == [], "nothing has changed"


async def lines_of(client: TestClient, name: str, **query: str) -> list[dict]:
    answer = await client.get(f"/export/{name}", params=query)
    assert answer.status == 200, await answer.text()
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}.jsonl"'
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    return [json.loads(line) for line in (await answer.text()).splitlines()]


async def test_what_a_filter_matches_is_exported_whole_as_the_table_has_it(recorded: Path, monkeypatch):
    monkeypatch.setattr(records, "LINES_PER_CHUNK", 7)
    async with signed_in(recorded) as client:
        for wanted in ({}, {"outcome": "success"}, {"purpose": "train", "outcome": "failure"}, {"task_id": "none"}):
            rows, cursor = [], ""
            while True:
                page = await view(client, "trajectories", cursor=cursor, **wanted)
                rows += page["rows"]
                if page["next"] is None:
                    break
                cursor = str(page["next"])
            found = await lines_of(client, "trajectories", **wanted)
            assert found == rows
            assert wanted or len({row["trajectory_id"] for row in rows}) == len(rows) == page["total"]
            assert bool(rows) == ("task_id" not in wanted)
        found = await lines_of(client, "log", topic="actions", q="onerror")
        assert found
        assert all("onerror" in record["value"] for record in found)
        assert len(await lines_of(client, "log", topic="observations")) > records.MAX_SHOWN, "more than the page shows"
        assert (await client.get("/export/secrets")).status == 404
        assert (await client.get("/export/log", params={"topic": "nothing"})).status == 404
        head = await client.head("/export/trajectories")
        assert (head.status, await head.read()) == (200, b"")
    async with client_of(recorded) as stranger:
        assert (await stranger.get("/export/trajectories")).status == 401


async def test_a_file_has_the_newest_steps_and_the_screens_of_its_samples(recorded: Path, monkeypatch):
    monkeypatch.setattr(export, "MAX_STEPS", 2)
    source = BundleSource(Bundle(recorded)).read()
    archive = await export.collect(source)
    steps = sorted(source.state.trained)
    assert {key for key in archive.answers if key.startswith("step?")} == {f"step?id={number}" for number in steps[-2:]}
    assert len(archive.answers["steps?"].steps) == len(steps)
    pairs = archive.answers["report?"].samples
    episodes = [one.trajectory_id for pair in pairs for one in (pair.a, pair.b)]
    played = {key.removeprefix("trajectory?id=") for key in archive.answers if key.startswith("trajectory?")}
    assert played == set(episodes)
    assert len(archive.screens) <= export.MAX_SCREENS * len(episodes)
    monkeypatch.setattr(source, "_places", {})
    assert (await export.collect(source)).screens == {}, "a bundle without screenshots has a file all the same"
