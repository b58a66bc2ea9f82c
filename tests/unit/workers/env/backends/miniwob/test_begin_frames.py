"""Frames of a browser that a script plays: late answers, frames without an image, frames that never end."""

import asyncio
import base64
import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import psutil
import pytest

from dart_streams.deadline import Deadline
from workers.env.backends.miniwob import capture
from workers.env.backends.miniwob.capture import BEGIN_FRAME, BeginFrames
from workers.env.backends.miniwob.devtools import CRASHED, DevTools
from workers.env.backends.miniwob.inputs import mouse_event
from workers.env.backends.miniwob.process_load import COMPUTED_S, IDLE_S, ProcessLoad, hangs, load_of
from workers.env.environment import EnvironmentFault

IMAGE = base64.b64encode(b"png").decode()
Answer = dict[str, Any] | None


class ScriptedBrowser(asyncio.WriteTransport):
    """The other end of the pipes: ``answer`` returns the result of a call, None for none so far."""

    def __init__(self, answer: Callable[["ScriptedBrowser", dict[str, Any]], Answer]) -> None:
        super().__init__()
        self.reader = asyncio.StreamReader()
        self.answer = answer
        self.calls: list[dict[str, Any]] = []
        self.frames = self.under_way = self.most_under_way = 0

    def write(self, data: bytes) -> None:
        call = msgspec.json.decode(data[:-1])
        self.calls.append(call)
        if call["method"] == BEGIN_FRAME:
            self.frames += 1
            self.under_way += 1
            self.most_under_way = max(self.under_way, self.most_under_way)
        if (result := self.answer(self, call)) is not None:
            asyncio.get_running_loop().call_soon(self.reply, call, result)

    def reply(self, call: dict[str, Any], result: dict[str, Any]) -> None:
        self.under_way -= call["method"] == BEGIN_FRAME
        self.feed({"id": call["id"], "result": result})

    def feed(self, message: dict[str, Any]) -> None:
        self.reader.feed_data(msgspec.json.encode(message) + b"\0")

    def called(self, method: str) -> int:
        return sum(call["method"] == method for call in self.calls)

    def close(self) -> None:
        self.reader.feed_eof()


WAITING = ProcessLoad(1.0, False)
STARVED = ProcessLoad(1.0, True)


def begin_frames(browser: ScriptedBrowser, load: Callable[[], ProcessLoad] = lambda: WAITING) -> BeginFrames:
    return BeginFrames(DevTools(browser.reader, browser, 60.0), load)


@pytest.fixture
def soon(monkeypatch):
    """Shorten how long a frame is waited for until the processes are looked at; what is to come has time enough."""
    bounds = {"FRAME_S": 0.05, "POLL_INTERVAL_S": 0.05, "IMAGE_S": 60.0, "CRASH_S": 60.0, "STARVED_S": 60.0}
    for name, seconds in bounds.items():
        monkeypatch.setattr(capture, name, seconds)


async def test_an_input_event_that_frames_outrun_is_waited_for():
    late: list[dict[str, Any]] = []

    def answer(browser: ScriptedBrowser, call: dict[str, Any]) -> Answer:
        if call["method"] == "Input.dispatchMouseEvent":
            late.append(call)
            return None
        if call["method"] == BEGIN_FRAME and browser.frames == 15:
            browser.reply(late[0], {})
        return {}

    browser = ScriptedBrowser(answer)
    async with asyncio.timeout(60):
        await begin_frames(browser).perform("s", [mouse_event("mouseWheel", 1, 1, deltaX=0, deltaY=100)])
    assert browser.frames == 15


async def test_a_frame_without_an_image_is_drawn_again(soon):
    browser = ScriptedBrowser(lambda browser, call: {"screenshotData": IMAGE} if browser.frames == 4 else {})
    assert await begin_frames(browser).draw("s") == b"png"
    assert browser.frames == 4


@pytest.mark.parametrize(("bound", "result", "why"), [("IMAGE_S", {}, "image"), ("CRASH_S", None, "not drawn")])
async def test_a_browser_without_images_or_with_an_endless_frame_is_ended(soon, monkeypatch, bound, result, why):
    monkeypatch.setattr(capture, bound, 0.1)
    frames = begin_frames(ScriptedBrowser(lambda browser, call: result))
    with pytest.raises(EnvironmentFault, match=why):
        await frames.draw("s")
    assert frames.devtools.closed


async def test_images_of_a_starved_browser_are_awaited(soon, monkeypatch):
    """All its pages would be lost with it, and it has not had the processor for a frame."""
    monkeypatch.setattr(capture, "IMAGE_S", 0.05)
    browser = ScriptedBrowser(lambda browser, call: {"screenshotData": IMAGE} if browser.frames == 40 else {})
    frames = begin_frames(browser, lambda: STARVED)
    assert await frames.draw("s") == b"png"
    assert not frames.devtools.closed


async def test_a_browser_that_computes_and_draws_no_image_is_ended(soon, monkeypatch):
    monkeypatch.setattr(capture, "IMAGE_S", 0.05)
    looks = itertools.count()
    frames = begin_frames(
        ScriptedBrowser(lambda browser, call: {}), lambda: ProcessLoad(COMPUTED_S * next(looks), True)
    )
    with pytest.raises(EnvironmentFault, match="image"):
        await frames.draw("s")
    assert frames.devtools.closed


async def test_there_is_one_frame_at_a_time_also_after_an_episode_was_cancelled():
    def answer(browser: ScriptedBrowser, call: dict[str, Any]) -> Answer:
        asyncio.get_running_loop().call_later(0.02, browser.reply, call, {"screenshotData": IMAGE})
        return None

    browser = ScriptedBrowser(answer)
    frames = begin_frames(browser)
    drawing = [asyncio.create_task(frames.draw(f"s{number}")) for number in range(8)]
    await asyncio.sleep(0)
    drawing[0].cancel()
    drawing[3].cancel()
    drawn = await asyncio.gather(*drawing, return_exceptions=True)
    assert [type(one) for one in drawn].count(bytes) == 6
    assert browser.most_under_way == 1


async def test_a_frame_that_never_ends_costs_its_page_only(soon):
    def answer(browser: ScriptedBrowser, call: dict[str, Any]) -> Answer:
        if call["method"] == "Page.crash":
            browser.under_way -= 1
            browser.feed({"method": CRASHED, "sessionId": call["sessionId"]})
            return None
        return None if call["sessionId"] == "hangs" else {"screenshotData": IMAGE}

    browser = ScriptedBrowser(answer)
    frames = begin_frames(browser)
    hanging, other = await asyncio.gather(frames.draw("hangs"), frames.draw("other"), return_exceptions=True)
    assert isinstance(hanging, EnvironmentFault)
    assert other == b"png"
    assert (browser.called("Page.crash"), browser.most_under_way, frames.devtools.closed) == (1, 1, False)


async def test_a_frame_of_a_starved_browser_is_awaited(soon):
    looks, loop = itertools.count(1), asyncio.get_running_loop()

    def load() -> ProcessLoad:
        if next(looks) == 3:
            loop.call_soon_threadsafe(browser.reply, browser.calls[0], {"screenshotData": IMAGE})
        return STARVED

    browser = ScriptedBrowser(lambda browser, call: None)
    assert await begin_frames(browser, load).draw("s") == b"png"
    assert browser.called("Page.crash") == 0


@pytest.mark.parametrize("each_look_s", [0.0, COMPUTED_S])
async def test_a_page_that_computes_or_starves_for_ever_is_ended(soon, monkeypatch, each_look_s):
    looks = []
    monkeypatch.setattr(capture, "CRASH_S", 0.1)
    monkeypatch.setattr(capture, "Deadline", lambda seconds: Deadline(seconds, lambda: 10.0 * len(looks)))

    def load() -> ProcessLoad:
        looks.append(None)
        return ProcessLoad(each_look_s * len(looks), True)

    browser = ScriptedBrowser(lambda browser, call: None)
    with pytest.raises(EnvironmentFault, match="not drawn"):
        await begin_frames(browser, load).draw("s")
    assert browser.called("Page.crash") == 1
    assert (len(looks) == 2) == (each_look_s > 0)


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        (ProcessLoad(5.0, False), ProcessLoad(5.0, False), True),
        (ProcessLoad(5.0, True), ProcessLoad(5.0, False), False),
        (ProcessLoad(5.0, False), ProcessLoad(5.0, True), False),
        (ProcessLoad(5.0, False), ProcessLoad(5.0 + 2 * IDLE_S, False), False),
        (ProcessLoad(5.5, True), ProcessLoad(5.0 + COMPUTED_S, True), True),
    ],
)
def test_a_late_frame_is_lost_if_its_page_computes_or_nothing_does(before, now, lost):
    assert hangs(ProcessLoad(5.0, True), before, now) is lost


def test_the_load_is_that_of_a_process_and_those_below_it():
    """The shell waits while its child computes."""
    script = "import time\nwhile time.process_time() < 0.1: pass\nprint(flush=True); time.sleep(600)"
    command = ["/bin/sh", "-c", '"$0" -c "$1" & wait', sys.executable, script]
    shell = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert shell.stdout.readline()  # The child has computed, and sleeps.
        assert load_of(shell.pid).cpu_s > 0.08
    finally:
        for process in [*psutil.Process(shell.pid).children(recursive=True), shell]:
            process.kill()
        shell.wait()
        shell.stdout.close()
    assert load_of(shell.pid) == ProcessLoad(0.0, False)


async def test_a_call_that_is_cancelled_as_its_answer_comes_is_cancelled():
    """Or an episode that is ended would be played on."""
    browser = ScriptedBrowser(lambda browser, call: None)
    devtools = DevTools(browser.reader, browser, 5.0)
    calling = asyncio.create_task(devtools.call("Runtime.evaluate", "s"))
    await asyncio.sleep(0)
    ((*_, answer),) = devtools._pending.values()
    answer.set_result({})
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
