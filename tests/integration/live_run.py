"""A run that goes on, seen from outside: its page, its groups, and its processes, which may be killed."""

import asyncio
import contextlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

from console.launch.processes import PAGE_FILE
from console.runs import run_folder as folder
from dart_streams.bus.lag import lag_reader
from dart_streams.deadline import Deadline
from tests.integration.page_browser import Tab
from tests.integration.test_circle import STAND_IN
from tests.page.test_page import SHOTS, TABS, start
from tests.processes import command_of, marked
from tests.waiting import BOUND_S, wait_until

RUN_S = 150.0
GROUPS = {"curator", "env", "recorder", "rollout"}


async def address_of(made: folder.RunFolder) -> str:
    """Return the address that the run's page has written, once it has."""
    await asyncio.to_thread(wait_until, (made.path / PAGE_FILE).exists, "the run's page", RUN_S)
    assert (made.path / PAGE_FILE).stat().st_mode & 0o077 == 0, "others on this machine may not read the token"
    return str(json.loads((made.path / PAGE_FILE).read_bytes())["url"])


def page_process(made: folder.RunFolder) -> psutil.Process:
    """Return the process that serves the page, not its subreaper."""
    words = {child: command_of(child).split() for child in psutil.Process().children(recursive=True)}
    return [child for child, said in words.items() if ["ui", made.id] in (said[2:4], said[1:3])][-1]


async def watch(made: folder.RunFolder, page: Tab) -> None:
    """Open the run's page while it runs."""
    await page.open(await address_of(made))
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
    (SHOTS / "live-timings.txt").write_text(f"pages of a running circle, p50 {await page.pages_p50():.0f} ms")


async def committing(made: folder.RunFolder) -> set[str]:
    """Return the groups that have committed offsets, once the circle's own ones have: each does so in its own time."""
    deadline = Deadline(RUN_S)
    async with lag_reader(made.config().bus) as reader:
        while True:
            groups = {lag.group for lag in await reader.read() or ()}
            if groups >= GROUPS or deadline.expired:
                return groups
            await asyncio.sleep(0.2)


@contextlib.contextmanager
def feedback_page(made: folder.RunFolder, file: Path) -> Iterator[dict[str, str]]:
    """Serve a run's page for feedback as a process; yield its addresses and tokens."""
    process = start(file, made.id, "--feedback", "--state", made.path.parents[1])
    try:
        yield json.loads(file.read_bytes())
    finally:
        process.kill()
        process.wait()


def worker_of(made: folder.RunFolder, name: str) -> psutil.Process | None:
    """Return a process of a run, without the one that keeps it; None while it restarts."""
    mark = STAND_IN if name == "trainer" else f"--id {name}"
    ours = marked(psutil.Process().children(recursive=True), str(made.config_file))
    return next(iter(marked(ours, mark)), None)


def kill(made: folder.RunFolder, names: Collection[str]) -> None:
    """Kill processes of a run, and wait until each is gone."""
    for name in names:
        process = wait_until(lambda name=name: worker_of(made, name), name)
        process.kill()
        process.wait(BOUND_S)
