"""Runs on the page in a real Chromium: real runs of one broker and a bundle are listed, opened, compared, removed."""

import asyncio
import contextlib
import json
import shutil
import sys
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest

import dart_streams
from console.bundles.restore import restore
from console.launch import run_removal
from console.launch.provenance_reader import read_provenance
from console.runs import run_folder
from console.runs.bundle import Bundle
from console.runs.run_folder import RunFolder
from console.views.page.bundle_source import BundleSource
from dart_streams.bus import admin
from dart_streams.config import Config
from tests.command_line import invoke
from tests.integration.page_browser import Tab, tab
from tests.integration.recorded_run import record, settings
from tests.page.test_page import SHOTS, start
from tests.waiting import until, wait_until

pytestmark = pytest.mark.timeout(1800)
ROLLOUTS = 12
SESSION = 2
"""Connections of a session: for requests, and for events of the cluster."""


class Runs(NamedTuple):
    """A state folder with three runs of a broker, the oldest first, and a bundle of the third."""

    state: Path
    names: list[str]
    config: Config


def restored(config: Config, state: Path, bundle: Path, name: str) -> None:
    """Bring a played run into broker, store and folder, with journal and report as a run leaves them."""
    restore(Bundle(bundle), config, state, lambda _: None)
    folder = run_folder.find(str(state), name)
    journal = BundleSource(Bundle(bundle)).read().journal()
    start = read_provenance(["dart-streams", "run"], Path(sys.executable))
    folder.write_journal(msgspec.structs.replace(journal, outcome="complete", starts=(start,)))
    done = invoke("report", name, "--state", state)
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def runs(services, tmp_path_factory) -> Iterator[Runs]:
    state, config = tmp_path_factory.mktemp("state"), services.config()
    names = [f"{place}-{uuid.uuid4().hex[:6]}" for place in ("one", "two", "three")]
    for number, name in enumerate(names):
        played = settings(step_ms=1, run=name)
        played = msgspec.structs.replace(played, evaluation=msgspec.structs.replace(played.evaluation, episodes=8))
        bundle = record(state / f"{name}.dart", ROLLOUTS + 4 * number, played)
        restored(config, state, bundle, name)
        if number < 2:
            bundle.unlink()
    yield Runs(state, names, config)
    for name in names:
        remove_topics(config, name)


def remove_topics(config: Config, name: str) -> None:
    bus = msgspec.structs.replace(config.bus, prefix=f"dart.{name}.")
    with admin.connect(bus) as client:
        if topics := run_removal.topics_of(client, bus):
            client.delete_topics(topics)


class ServedPage(NamedTuple):
    """A tab on the page of a process."""

    tab: Tab
    base: str
    token: str
    process: psutil.Process

    async def answer(self, path: str) -> str:
        """Return what the server answers to a script."""

        def read() -> str:
            request = urllib.request.Request(self.base + path, headers={"Authorization": f"Bearer {self.token}"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(answer.read().decode())

        return await asyncio.to_thread(read)

    def connections(self, port: int) -> int:
        """Return the number of the process's connections to a port."""
        found = self.process.net_connections("tcp")
        return sum(1 for one in found if one.raddr and one.raddr.port == port and one.status == "ESTABLISHED")

    async def is_shown(self, name: str) -> None:
        await self.tab.until(f"document.getElementById('run')?.innerText === {json.dumps(name)}", name)


@contextlib.asynccontextmanager
async def served(runs: Runs, name: str, folder: Path) -> AsyncIterator[ServedPage]:
    process = await asyncio.to_thread(start, folder / "ui.json", name, "--state", runs.state)
    try:
        address = json.loads((folder / "ui.json").read_bytes())
        async with tab(SHOTS) as page:
            await page.open(address["url"])
            await page.at("")
            yield ServedPage(page, address["address"], address["token"], psutil.Process(process.pid))
    finally:
        process.kill()
        process.wait()


def link(name: str) -> str:
    """Return the selector of a link that opens a run."""
    return f'.page[data-page=runs] a[title="open {name}"]'


async def listed(page: Tab, *names: str) -> None:
    """Wait until the list has runs and bundles of these ids, among others of the broker."""
    ids = "[...document.querySelectorAll('tbody tr td:first-child > div:first-child')].map((one) => one.innerText)"
    await page.until(f"((ids) => {json.dumps(names)}.every((one) => ids.includes(one)))({ids})", "the list")


async def open_run(page: ServedPage, name: str) -> None:
    """Open a run of the list by a click of the mouse, and wait for its figures."""
    await page.tab.go("runs")
    await page.tab.drag(link(name), (0.5, 0.5))
    await page.tab.until("location.search.includes('run=') && !!document.querySelector('.headline')", name)


async def test_runs_are_listed_opened_and_compared_without_a_restart(runs: Runs, tmp_path: Path):
    one, two, three = runs.names
    async with served(runs, one, tmp_path) as page:
        shown = page.tab
        await page.is_shown(one)
        await shown.press("0")
        await shown.at("#/runs")
        await listed(shown, one, two, three, f"{three}.dart")
        rows = await shown.js("[...document.querySelectorAll('tbody tr')].map((row) => row.innerText)")
        found = {name: text for name in (one, two, f"{three}.dart") for text in rows if name in text}
        assert "shown" in found[one] and "complete" in found[one]
        assert all(part in found[two] for part in ("→", "cores", "GiB"))
        assert "bundle" in found[f"{three}.dart"]
        await shown.shot("runs")
        await open_run(page, two)
        await page.is_shown(two)
        assert f"This is {two}" in await shown.text("#beside")
        await shown.go("trajectories")
        ids = "[...document.querySelectorAll('td:nth-child(2) a')].map((one) => one.hash)"
        others = set(await shown.until(f"((ids) => ids.length >= 10 && ids)({ids})", "its rollouts"))
        await shown.go(await shown.first_link("td:nth-child(2) a"))
        await shown.until("document.querySelector('.stage img')?.naturalWidth === 160", "its screenshot, of its store")
        await shown.click("#beside a")
        await page.is_shown(one)
        assert await shown.js("location.search + location.hash") == "#/wall"
        await shown.until("!!document.querySelector('.tile img')?.naturalWidth", "a screen, of the store of the first")
        await shown.go("trajectories")
        assert not others & set(await shown.js(ids))
        await shown.go("runs")
        await shown.drag(f'a[title="compare {one} with {two}"]', (0.5, 0.5))
        await shown.until("document.querySelectorAll('.rates tbody tr').length === 2", "the comparison")
        assert one in await shown.text(".headline") and two in await shown.text(".headline")
        await shown.click("td a")
        await shown.until(
            "[...document.querySelectorAll('.lane img')].filter((i) => i.naturalWidth === 160).length >= 4"
        )
        await shown.shot("runs-compared")
        await open_run(page, f"{three}.dart")
        await shown.until("document.getElementById('status')?.innerText.includes('bundle')", "the bundle")
        assert shown.errors == []


async def test_a_run_is_exported_by_a_click_and_opened_in_python(runs: Runs, tmp_path: Path):
    one, two, _ = runs.names
    async with served(runs, one, tmp_path) as page:
        folder = str(tmp_path / "downloads")
        await page.tab.devtools.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
        await page.tab.go("runs")
        await page.tab.drag(f'a[title="export {two}"]', (0.5, 0.5))
        for kind, suffix in (("screens", ".dart"), ("page", ".html")):
            await page.tab.drag(f'.export button[data-kind="{kind}"]', (0.5, 0.5))
            said = "document.querySelector('.export [role=status]')?.innerText"
            await page.tab.until(f"{said}?.startsWith('Ready, ')", "the export")
            file = tmp_path / "downloads" / f"{two}{suffix}"
            await asyncio.to_thread(wait_until, file.exists, f"the download of {file.name}")
            await page.tab.shot(f"runs-export-{kind}")
        assert json.loads(await page.answer("api/runs"))["beside"] == [two], "opened for its export"
        assert page.tab.errors == []
    got = dart_streams.open(tmp_path / "downloads" / f"{two}.dart")
    live = dart_streams.open(two, runs.state)
    assert [row["trajectory_id"] for row in got.episodes] == [row["trajectory_id"] for row in live.episodes] != []
    screen = next(row["screen"] for row in got.actions)
    assert got.screenshot(screen) == live.screenshot(screen)
    written = runs.state / "runs" / two / "report.html"
    assert (tmp_path / "downloads" / f"{two}.html").read_bytes() == written.read_bytes()


async def test_a_third_run_closes_consumer_and_session_of_the_oldest(runs: Runs, tmp_path: Path):
    one, two, three = runs.names
    kafka, cassandra = int(runs.config.bus.servers.rpartition(":")[2]), runs.config.store.port
    async with served(runs, one, tmp_path) as page:

        async def read(name: str) -> None:
            """Read a run's topics and a screenshot of its store."""
            if name != one:
                await open_run(page, name)
            await page.tab.go("wall")
            await page.tab.until("!!document.querySelector('.tile img')?.naturalWidth", "a screen")

        for name in runs.names:
            await read(name)
        sessions = lambda count: page.connections(cassandra) == count * SESSION  # noqa: E731
        await asyncio.to_thread(wait_until, lambda: sessions(3), "three sessions")
        consumers = page.connections(kafka)
        await read(f"{three}.dart")
        assert json.loads(await page.answer("api/runs"))["beside"] == [three, f"{three}.dart"]
        assert "page_runs 3" in await page.answer("metrics")

        async def is_closed() -> bool:
            return sessions(2) and page.connections(kafka) < consumers

        await until(is_closed)
        await read(two)
        assert json.loads(await page.answer("api/runs"))["beside"] == [f"{three}.dart", two], "opened again"
        assert page.tab.errors == []


async def test_a_run_begins_loses_its_topics_and_is_removed_meanwhile(runs: Runs, tmp_path: Path):
    one = runs.names[0]
    async with served(runs, one, tmp_path) as page:
        shown = page.tab
        await shown.go("runs")
        name = f"later-{uuid.uuid4().hex[:6]}"
        played = settings(step_ms=1, run=name)
        bundle = await asyncio.to_thread(record, tmp_path / "later.dart", ROLLOUTS, played)
        await asyncio.to_thread(restored, runs.config, runs.state, bundle, name)
        try:
            await shown.until(f"!!document.querySelector({json.dumps(link(name))})", "a run that began after the page")
            await open_run(page, name)
            await page.is_shown(name)
            await asyncio.to_thread(remove_topics, runs.config, name)
            await shown.go("runs")
            gone = "document.querySelector('.missing')?.innerText.includes('its topics are gone')"
            await shown.until(f"{gone} && !document.querySelector({json.dumps(link(name))})", "no link, and why")
            await shown.shot("runs-gone")
            shutil.rmtree(runs.state / "runs" / name)
            await shown.until(f"document.getElementById('away')?.innerText.includes('{name} was removed')", "removed")
            await shown.go("tasks")
            assert f"no run '{name}' here" in await shown.text(".problem")
            await shown.go("runs")
            await listed(shown, *runs.names)
        finally:
            shutil.rmtree(runs.state / "runs" / name, ignore_errors=True)
            remove_topics(runs.config, name)
        shown.errors.clear()  # an id that is not there any more is answered with 404, and the console says so


async def test_runs_of_the_broker_without_a_folder_are_listed_and_opened(runs: Runs, tmp_path: Path):
    one, two, _ = runs.names
    folder = RunFolder(runs.state / "runs" / two)
    async with served(runs, one, tmp_path) as page:
        folder.path.rename(tmp_path / "moved")
        try:
            await page.tab.go("runs")
            await page.tab.until("document.querySelector('tbody')?.innerText.includes('no folder on this machine')")
            await page.tab.click(link(two))
            await page.is_shown(two)
            await page.tab.go("trajectories")
            await page.tab.until("document.querySelectorAll('tbody tr').length >= 10", "its topics")
        finally:
            (tmp_path / "moved").rename(folder.path)
        page.tab.errors.clear()  # its report has no folder
