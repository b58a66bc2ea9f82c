"""A thousand slots that change for 20 seconds take few messages and bounded memory."""

import asyncio
import hashlib
import time

import psutil

from console.runs.run_folder import PhaseLog
from console.runs.run_log import ActionTimes, EndHeader, ObservationHeader, OrderHeader, RecordMetadata
from console.runs.run_state import RunState
from console.views.page.assets import load_assets
from console.views.page.guard import Guard
from console.views.page.server import PUSH_S, PageServer
from console.views.page.source import Progress
from dart_streams.background import run_beside
from dart_streams.clock import now_ms
from dart_streams.config import parse
from tests.page.test_page import SHOTS, beside
from topics.values import BlobRef
from workers.env.backends.simulated import draw_picture

SLOTS = 1000
STEPS_PER_S = 333
WATCHED_S = 20.0
LENGTH = 8
COUNTING = """void (window.seen = {messages: 0, long: 0},
window.watched = new WebSocket(`ws://${location.host}/api/live?watch=wall&csrf=${localStorage["dart_streams csrf"]}`),
watched.onmessage = () => seen.messages++,
new PerformanceObserver((list) => list.getEntries().forEach((e) => seen.long = Math.max(seen.long, e.duration)))
  .observe({entryTypes: ["longtask"]}))"""
"""A second tab's socket counts messages; the longest task of the page is in milliseconds."""


class MadeUpRun:
    """A source whose slots all take steps; see :class:`~console.views.page.source.RunSource`."""

    kind = "run"
    name = "made-up"

    def __init__(self) -> None:
        self.config = parse({"env": {"workers": 4, "slots": SLOTS // 4}}, "the test")
        self.state = RunState()
        self.progress = Progress(True)
        self.images = [draw_picture((30 + 10 * n, 60 + 12 * n), n % 9) for n in range(9)]
        self.shots = [hashlib.sha256(image).hexdigest() for image in self.images]
        self.steps = [(f"e0-{slot}", slot % LENGTH) for slot in range(SLOTS)]
        self.count = 0

    @property
    def now_ms(self) -> int:
        return now_ms()

    def journal(self) -> PhaseLog:
        return PhaseLog()

    def note_viewer(self) -> None:
        pass

    async def screenshot(self, sha256: str) -> bytes:
        return self.images[self.shots.index(sha256)]

    def turn(self) -> None:
        """Let the next slot take its step, or end and begin anew."""
        slot = self.count % SLOTS
        identity, step = self.steps[slot]
        end = EndHeader("success", 1.0) if step == LENGTH else None
        order = OrderHeader(f"o-{identity}", "train", f"simulated/page#{slot % 40}")
        shot = BlobRef(sha256=self.shots[self.count % 9], size=1, width=160, height=210)
        taken = ActionTimes(1, 2, 3, "Action: click(start_box='(84,112)')") if step else None
        header = ObservationHeader(identity, order, step, end, f"env-{slot // 250}", now_ms(), taken, shot)
        self.state.apply(RecordMetadata("observations", 0, self.count, header.at_ms), header)
        self.steps[slot] = (f"e{self.count}-{slot}", 0) if end else (identity, step + 1)
        self.count += 1

    async def run(self) -> None:
        began = time.monotonic()
        while True:
            due = int((time.monotonic() - began) * STEPS_PER_S) + SLOTS - self.count
            for _ in range(max(0, due)):
                self.turn()
            await asyncio.sleep(0.02)


async def test_a_thousand_slots_stay_smooth():
    source = MadeUpRun()
    guard = Guard(frozenset(), 1, tls=False)
    application = PageServer(source, guard, load_assets(None)).application()  # type: ignore[arg-type]
    async with run_beside(source.run()), beside(application) as (page, base):
        await page.open(f"{base}?token={guard.token}")
        await page.at("")
        await page.until("document.querySelector('canvas.carpet')?.height > 100", "the carpet")
        counted = time.monotonic()
        await page.js(COUNTING)
        before = await heap(page)
        began, cpu, count, resident = time.monotonic(), time.process_time(), source.count, resident_mb()
        await asyncio.sleep(WATCHED_S)  # what is measured is a span of time
        watched_s, spent_s = time.monotonic() - began, time.process_time() - cpu
        steps, held_mb, after = source.count - count, resident_mb() - resident, await heap(page)
        seen, counted_s = await page.js("window.seen"), time.monotonic() - counted
        box = await page.js("document.querySelector('canvas.carpet').getBoundingClientRect().toJSON()")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            where = {"x": box["x"] + 50, "y": box["y"] + 9, "button": "none" if kind == "mouseMoved" else "left"}
            await page.call("Input.dispatchMouseEvent", type=kind, clickCount=1, **where)
            if kind == "mouseMoved":
                await page.until("document.querySelector('.peek img')?.naturalWidth === 160", "the screen under it")
                await page.shot("slots-1000")
        await page.until("location.hash.startsWith('#/trajectory')", "the slot that was clicked")
        page.errors.clear()  # a made-up run has no steps in a store
    figures = (
        f"heap {before:.1f} to {after:.1f} MB, {seen}, {spent_s:.2f} s of CPU and {held_mb:.1f} MB more in the server "
        f"for two sockets and {steps} steps in {watched_s:.0f} s"
    )
    (SHOTS / "slots-1000.txt").write_text(figures)
    assert steps > 0, "the run that was watched stood still"
    assert 0 < seen["messages"] <= counted_s / PUSH_S + 1
    assert after - before < 3, "MB of JavaScript that is kept"
    assert held_mb < 20, "of which the fold of the steps is some kilobytes an episode"


def resident_mb() -> float:
    """Return the memory of this process, which is the server's, in MB."""
    return float(psutil.Process().memory_info().rss / 1e6)


async def heap(page) -> float:
    """Return the JavaScript heap after a collection, in MB."""
    await page.call("HeapProfiler.collectGarbage")
    return (await page.call("Runtime.getHeapUsage"))["usedSize"] / 1e6
