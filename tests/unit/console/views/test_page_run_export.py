"""Exports of runs from the page's server: bundles and pages with their sizes, one at a time, and failures as texts."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient

import dart_streams
from console.launch.folder_catalog import FolderCatalog
from console.runs.bundle import Bundle, verify
from console.views.page import run_export
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from console.views.page.guard import Guard
from console.views.page.server import PageServer
from tests.integration.exported_page import answers
from tests.integration.recorded_run import record, settings
from tests.unit.console.views import test_page_intake
from tests.unit.console.views.test_page_runs import client_of
from tests.unit.console.views.test_page_server import TOKEN
from tests.waiting import until


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return record(tmp_path_factory.mktemp("state") / "recorded.dart", 8, settings(step_ms=1))


@contextlib.asynccontextmanager
async def served(recorded: Path):
    """Yield a client of a page on a run whose broker does not answer, with a bundle in the folder."""
    source = test_page_intake.run_source()
    guard = Guard(frozenset(), 1, tls=False, token=TOKEN)
    page = PageServer(source, guard, load_assets(None), catalog=FolderCatalog(recorded.parent, source))
    async with client_of(page) as client:
        yield client, page


def size_of(file: Path) -> int:
    return file.stat().st_size


async def exported(client: TestClient, identity: str, kind: str) -> dict:
    """Ask for an export until it is over; return its last state."""

    async def is_over() -> dict | None:
        answer = await client.get("/api/export", params={"id": identity, "kind": kind})
        assert answer.status == 200, await answer.text()
        status = await answer.json()
        return status if status["state"] != "making" else None

    return await until(is_over)


async def test_a_bundle_is_downloaded_whole_with_its_size(recorded: Path, tmp_path: Path):
    async with served(recorded) as (client, _):
        status = await exported(client, recorded.name, "bundle")
        assert status == {"state": "ready", "text": "", "bytes": size_of(recorded)}
        answer = await client.get("/export/run", params={"id": recorded.name, "kind": "bundle"})
        assert answer.headers["Content-Disposition"] == 'attachment; filename="recorded.dart"'
        assert int(answer.headers["Content-Length"]) == status["bytes"]
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        (tmp_path / "got.dart").write_bytes(await answer.read())
    verify(tmp_path / "got.dart")
    assert len(list(dart_streams.open(tmp_path / "got.dart").episodes)) > 0


async def test_the_page_of_a_run_is_one_file(recorded: Path, tmp_path: Path):
    async with served(recorded) as (client, _):
        assert (await exported(client, recorded.name, "page"))["state"] == "ready"
        answer = await client.get("/export/run", params={"id": recorded.name, "kind": "page"})
        assert answer.headers["Content-Disposition"] == 'attachment; filename="recorded.html"'
        (tmp_path / "got.html").write_bytes(await answer.read())
    source = BundleSource(Bundle(recorded)).read()
    assert len(answers(tmp_path / "got.html")["steps?"]["steps"]) == len(source.state.trained)


async def test_an_export_is_made_again_once_it_was_fetched(recorded: Path):
    async with served(recorded) as (client, page):
        await exported(client, recorded.name, "bundle")
        first = page.exports.current
        await exported(client, recorded.name, "bundle")
        assert page.exports.current is first, "a second tab waits for the same file"
        for _ in range(2):  # a link to download it again
            answer = await client.get("/export/run", params={"id": recorded.name, "kind": "bundle"})
            assert answer.status == 200
        await exported(client, recorded.name, "bundle")
        assert page.exports.current is not first
        assert not first.file.exists()


async def test_what_cannot_be_exported_says_why(recorded: Path):
    async with served(recorded) as (client, page):
        for query, status in (({"id": "nosuch", "kind": "page"}, 404), ({"id": recorded.name, "kind": "x"}, 404)):
            assert (await client.get("/api/export", params=query)).status == status
        early = await client.get("/export/run", params={"id": recorded.name, "kind": "bundle"})
        assert (early.status, "begin it on the page Runs" in await early.text()) == (404, True)
        failed = await exported(client, page.pool.first.id, "bundle")
        assert (failed["state"], "task set is not on this machine" in failed["text"]) == ("failed", True)


async def test_one_export_is_made_at_a_time_and_the_end_leaves_no_file(recorded: Path, monkeypatch):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*_) -> None:
        begun.set()
        await go_on.wait()

    monkeypatch.setattr(run_export.export, "wait_until_read", slow)
    async with served(recorded) as (client, page):
        await client.get("/api/export", params={"id": recorded.name, "kind": "page"})
        await begun.wait()
        assert page.pool.beside[recorded.name].users == 1, "it stays open meanwhile"
        other = await client.get("/api/export", params={"id": recorded.name, "kind": "bundle"})
        assert (other.status, "is being exported" in (await other.json())["error"]) == (503, True)
        folder = page.exports.current.file.parent
        assert folder.is_dir()
    assert not folder.exists()
    assert page.exports.current.making.cancelled()


def test_an_export_that_was_given_up_leaves_no_bundle(tmp_path: Path):
    made = run_export.RunExport("r", "bundle", tmp_path)
    made.given_up.set()
    with pytest.raises(run_export.AbandonedExport):
        made.report("observations: 1,000 so far")
    assert run_export.RunExport("../../a b.dart", "page", tmp_path).download_name() == "a_b.html"
