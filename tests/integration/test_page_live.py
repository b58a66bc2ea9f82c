"""The page of a live run moves, reads in no consumer group, and costs the run nothing when it dies."""

import asyncio
import io
import json
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

from dart_streams.bus.lag import lag_reader
from dart_streams.config import Ui
from dart_streams.console.launch.processes import PAGE_FILE
from dart_streams.console.launch.session import Session
from dart_streams.console.launch.supervisor import Supervisor
from dart_streams.console.launch.training_run import TrainingRun
from dart_streams.console.runs import run_folder
from dart_streams.deadline import Deadline
from tests.integration.exported_page import answers
from tests.integration.page_browser import Tab, tab
from tests.integration.test_circle import HERE, circle_config, session_of
from tests.integration.test_page import SHOTS, TABS
from tests.waiting import wait_until

RUN_S = 150.0
GROUPS = {"curator", "env", "recorder", "rollout"}


async def address_of(folder: run_folder.RunFolder) -> str:
    """Return the address that the run's page has written, once it has."""
    await asyncio.to_thread(wait_until, (folder.path / PAGE_FILE).exists, "the run's page", RUN_S)
    assert (folder.path / PAGE_FILE).stat().st_mode & 0o077 == 0, "others on this machine may not read the token"
    return str(json.loads((folder.path / PAGE_FILE).read_bytes())["url"])


def page_process(folder: run_folder.RunFolder) -> psutil.Process:
    """Return the process that serves the page, not its subreaper."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if ["ui", folder.id] in (child.cmdline()[2:4], child.cmdline()[1:3])][-1]


async def watch(folder: run_folder.RunFolder, page: Tab) -> None:
    """Open the run's page while it runs."""
    await page.open(await address_of(folder))
    await page.until("document.querySelectorAll('.tile img[src]').length >= 4", "screens on the wall")
    hrefs = "[...document.querySelectorAll('.tile')].map((tile) => tile.href).join()"
    before = await page.js(hrefs)
    await page.until(f"{hrefs} !== {json.dumps(before)}", "other episodes on the wall")
    await page.shot("live-wall")
    await page.until("document.getElementById('status').innerText.includes('circle')", "the circle's phase")
    await page.click(".tile.waits, .tile.acts, .tile.success")
    await page.until("!!document.querySelector('.stage img')", "a trajectory that is played now")
    await page.shot("live-trajectory")
    await page.go("steps")
    await page.until("document.querySelectorAll('td a').length >= 2", "optimizer steps, as they are made")
    await page.go(await page.first_link("td a"))
    await page.go(await page.first_link("td a"))
    await page.until("!!document.querySelector('.cell img')", "a group's screens")
    await page.shot("live-group")
    for place in TABS:
        await page.go(place)
        await page.shot(f"live-{place}")
    await page.go("log?topic=observations")
    await page.until("document.querySelectorAll('.record').length > 10")
    p50_ms = await page.pages_p50()
    (SHOTS / "live-timings.txt").write_text(f"pages of a running circle, p50 {p50_ms:.0f} ms")


def run_until(seen: asyncio.Event, folder: run_folder.RunFolder, console: Console) -> Session:
    """Return a run whose training goes on until ``seen`` is set, whatever the machine's speed."""
    session = session_of(folder, console)
    make_run = session.make_run

    def watched_run(supervisor: Supervisor) -> TrainingRun:
        run = make_run(supervisor)
        run.enough = lambda _state: seen.is_set()
        return run

    session.make_run = watched_run  # type: ignore[method-assign]
    return session


async def committing(folder: run_folder.RunFolder) -> set[str]:
    """Return the groups that have committed offsets, once the circle's own ones have: each does so in its own time."""
    deadline = Deadline(RUN_S)
    async with lag_reader(folder.config().bus) as reader:
        while True:
            groups = {lag.group for lag in await reader.read() or ()}
            if groups >= GROUPS or deadline.expired:
                return groups
            await asyncio.sleep(0.2)


@pytest.mark.timeout(600)
async def test_a_run_is_watched_while_it_turns_and_outlives_its_page(services, tmp_path: Path):
    config = circle_config(services, tmp_path, episodes=0, train_steps=1)
    longest = msgspec.structs.replace(config.run, minutes=8.0)
    config = msgspec.structs.replace(config, ui=Ui(port=0), run=longest)
    folder = run_folder.create(config, HERE / "circle-tasks.toml", run_folder.new_id(), resume=False)
    shown = io.StringIO()
    seen = asyncio.Event()
    run = asyncio.create_task(run_until(seen, folder, Console(file=shown, width=160)).run())
    try:
        async with tab(SHOTS) as page:
            watching = asyncio.create_task(watch(folder, page))
            await asyncio.wait({run, watching}, return_when=asyncio.FIRST_COMPLETED)
            assert watching.done(), f"the run ended before it was seen: {shown.getvalue()}"
            watching.result()
            assert page.errors == []
        assert await committing(folder) == GROUPS, "the page is in no group and commits nothing"
        page_process(folder).kill()
        await asyncio.to_thread(wait_until, lambda: "ui died" in shown.getvalue(), "the end of the page", RUN_S)
        seen.set()
        await run
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    report = json.loads((folder.path / "report.json").read_text())
    assert report["lost"] == 0
    assert report["train_steps"] >= 2
    kept = answers(folder.path / "report.html")
    assert len(kept["steps?"]["steps"]) == report["train_steps"], "the file has each optimizer step, as the page had"
    assert any(task["success_rate"] is not None for task in kept["tasks?"])
    assert kept["run?"]["header"]["phase_ms"] is None, "what has ended counts no more time"
    assert "watch it at http://127.0.0.1:" in shown.getvalue()
