"""Further runs on the page's server: the list, the bound of open ones, removed and damaged ones, and who may write."""

import asyncio
import re
import shutil
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp.test_utils import TestClient

from console.launch.folder_catalog import FolderCatalog
from console.runs.bundle import Bundle, Manifest, Writer
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from console.views.page.feedback_intake import FeedbackIntake
from console.views.page.guard import Guard, WriteRight
from console.views.page.run_pool import MOST_BESIDE
from console.views.page.server import PageServer
from tests.unit.console.views import test_page_intake
from tests.unit.console.views.test_page_server import GOLDEN, TOKEN, browser_on
from tests.waiting import until

BUNDLES = ("a.dart", "runs/b.dart", "runs/c.dart", "runs/d.dart")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with four bundles."""
    for name in BUNDLES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(GOLDEN, tmp_path / name)
    return tmp_path


def page_of(state: Path, own: str = "a.dart", *, alone: bool = False) -> PageServer:
    source = BundleSource(Bundle(state / own)).read()
    guard = Guard(frozenset(), 1, tls=False, token=TOKEN)
    return PageServer(source, guard, load_assets(None), catalog=None if alone else FolderCatalog(state, source))


def client_of(page: PageServer, token: str = TOKEN):
    """Return a client that has opened the printed address."""
    return browser_on(page.application(), token)


async def view(client: TestClient, name: str, **query: str):
    answer = await client.get(f"/api/{name}", params=query)
    return answer.status, await answer.json()


async def test_bundles_of_the_folder_are_listed_and_opened(state: Path):
    async with client_of(page_of(state)) as client:
        status, found = await view(client, "runs")
        assert (status, found["own"], found["beside"]) == (200, ["a.dart"], [])
        assert {row["id"] for row in found["rows"]} == set(BUNDLES)
        assert {(row["kind"], row["opens"]) for row in found["rows"]} == {("bundle", True)}
        assert all(row["captured_ms"] for row in found["rows"])
        assert (await view(client, "run", run="runs/b.dart"))[0] == 200
        assert (await view(client, "runs"))[1]["beside"] == ["runs/b.dart"]


@pytest.mark.parametrize("name", ["nosuch", "../a.dart", "/etc/passwd", "runs/../a.dart", "runs", ".", "x" * 5000])
async def test_only_ids_of_the_list_are_opened(state: Path, name: str):
    page = page_of(state)
    async with client_of(page) as client:
        for path in ("/api/run", "/export/trajectories", "/screenshot/" + "0" * 64):
            for parameter in ("run", "against"):
                answer = await client.get(path, params={parameter: name})
                assert answer.status == 404
                assert "choose one on the page Runs" in (await answer.json())["error"]
        assert page.pool.beside == {}


async def test_a_third_run_closes_the_least_recently_asked_for(state: Path):
    page = page_of(state)
    async with client_of(page) as client:
        for name in ("runs/b.dart", "runs/c.dart", "runs/b.dart"):
            assert (await view(client, "run", run=name))[0] == 200
        closed = page.pool.beside["runs/c.dart"]
        assert len(page.pool.beside) == MOST_BESIDE
        assert (await view(client, "run", run="runs/d.dart"))[0] == 200
        assert list(page.pool.beside) == ["runs/b.dart", "runs/d.dart"]
        await until(lambda: is_closed(closed))
        metrics = await (await client.get("/metrics")).text()
        assert f"page_runs {1 + MOST_BESIDE}" in metrics.splitlines()
        assert (await view(client, "run"))[0] == 200, "the page's own run is never closed"


async def is_closed(run) -> bool:
    return run.source._spool.closed and run.reading.done()


async def test_a_run_is_closed_only_after_its_last_request(state: Path):
    page = page_of(state)
    with page.pool.use({"run": "runs/b.dart"}) as shown:
        for name in ("runs/c.dart", "runs/d.dart"):
            with page.pool.use({"run": name}):
                pass
        assert "was closed" in shown.gone
        await asyncio.sleep(0)
        assert not await is_closed(shown.run)
    await until(lambda: is_closed(shown.run))
    await page.pool.close()
    assert page.pool.beside == {}


async def test_an_open_tab_is_sent_the_reason_why_its_run_is_gone(state: Path):
    page = page_of(state)
    async with client_of(page) as client:
        headers = {"Origin": f"http://{client.host}:{client.port}"}
        async with client.ws_connect("/api/live?run=runs/b.dart", headers=headers) as socket:
            assert (await socket.receive_json())["header"]["kind"] == "bundle"
            (state / "runs/b.dart").unlink()
            message: dict = {}
            async with asyncio.timeout(60):
                while "gone" not in message:
                    message = await socket.receive_json()
            assert "runs/b.dart was removed" in message["gone"]
        async with client.ws_connect("/api/live?run=nosuch", headers=headers) as socket:
            assert "choose one on the page Runs" in (await socket.receive_json())["gone"]
        status, found = await view(client, "run", run="runs/b.dart")
        assert (status, "no run 'runs/b.dart' here" in found["error"]) == (404, True)


async def test_a_damaged_or_expansive_bundle_is_listed_with_its_reason(state: Path):
    with Writer(state / "runs/bomb.dart", Manifest(run="r", prefix="r.", captured_ms=1, schemas={})) as bundle:
        bundle.section("file:journal.json", "lines", [bytes(1 << 20)] * 48)
    with Writer(state / "runs/deep.dart", Manifest(run="r", prefix="r.", captured_ms=1, schemas={})) as bundle:
        bundle.section("file:journal.json", "lines", [b'{"x":' + b"[" * 5000])
    (state / "runs/torn.dart").write_bytes(GOLDEN.read_bytes()[:-20])
    whole = bytearray(GOLDEN.read_bytes())
    section = next(one for one in Bundle(GOLDEN).sections.values() if one.kind == "records")
    whole[section.start + section.size // 2] ^= 0xFF
    (state / "runs/bad.dart").write_bytes(whole)
    async with client_of(page_of(state)) as client:
        rows = {row["id"]: row for row in (await view(client, "runs"))[1]["rows"]}
        assert (rows["runs/torn.dart"]["opens"], rows["runs/torn.dart"]["state"]) == (False, "damaged")
        assert rows["runs/deep.dart"]["state"] == "damaged"
        assert "copy it" in rows["runs/torn.dart"]["note"]
        assert (rows["runs/bomb.dart"]["opens"], rows["runs/bomb.dart"]["state"]) == (False, "refused")
        assert "DART_BUNDLE_BYTES" in rows["runs/bomb.dart"]["note"]
        assert (await view(client, "run", run="runs/torn.dart"))[0] == 503

        async def refused() -> bool:
            status, found = await view(client, "run", run="runs/bad.dart")
            return status == 503 and "is damaged in" in found["error"]

        await until(refused)


async def test_two_runs_of_the_list_are_compared(state: Path):
    async with client_of(page_of(state)) as client:
        status, found = await view(client, "compare", of="other", run="runs/b.dart", against="runs/c.dart")
        assert (status, found["a"]["run"]) == (200, found["b"]["run"])
        for against in ({}, {"against": "runs/b.dart"}):
            status, found = await view(client, "compare", of="other", run="runs/b.dart", **against)
            assert (status, "page Runs" in found["error"]) == (404, True), "it is no other run"


async def test_a_page_alone_opens_no_other_run(state: Path):
    async with client_of(page_of(state, alone=True)) as client:
        found = (await view(client, "runs"))[1]
        assert [row["run"] for row in found["rows"]] == found["own"]
        assert (await view(client, "run", run="runs/b.dart"))[0] == 404


async def test_signing_in_keeps_the_runs_of_a_link(state: Path):
    hostile = 'x"><script>alert(1)</script>'
    async with client_of(page_of(state), "") as client:
        asked = await client.get("/", params={"run": hostile, "against": "c", "other": "y"})
        text = await asked.text()
        assert asked.status == 401
        assert "<script>" not in text and "y" not in [line for line in text.splitlines() if "hidden" in line]
        assert 'name="against" value="c"' in text
        signed = await (await client.get("/", params={"run": hostile, "token": TOKEN})).text()
        [place] = re.findall('data-place="(.*?)"', signed)
        assert parse_qs(urlsplit(place).query) == {"run": [hostile]}


async def test_feedback_goes_to_the_pages_own_run_only(state: Path):
    source = test_page_intake.run_source()
    guard = Guard(frozenset(), 1, tls=False, token=TOKEN, right=WriteRight(1, test_page_intake.WRITE))
    page = PageServer(
        source, guard, load_assets(None), None, FeedbackIntake(source, "ann"), FolderCatalog(state, source)
    )
    async with client_of(page, test_page_intake.WRITE) as client:
        assert (await view(client, "rights"))[1]["feedback"] is True
        assert (await view(client, "rights", run="runs/b.dart"))[1] == {"feedback": False}
        headers = {"Origin": f"http://{client.host}:{client.port}"}
        answer = await client.post("/api/feedback?run=runs/b.dart", json=test_page_intake.SAID, headers=headers)
        assert (answer.status, "takes feedback on" in (await answer.json())["error"]) == (400, True)
