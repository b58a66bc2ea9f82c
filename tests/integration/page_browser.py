"""A real Chromium that navigates, clicks, types and reads the page, and collects the errors of its console."""

import asyncio
import base64
import contextlib
import functools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dart_streams.deadline import Deadline
from tests import interfaces
from workers.env.backends.miniwob import browser as chromium
from workers.env.backends.miniwob.devtools import MESSAGE_BYTES, DevTools, Message

SIZE = (1280, 800)
PHONE = (390, 780)
WAIT_S = 240.0
"""Generous: tests run on machines that do other things at the same time."""
ONCE = "{capture: true, once: true}"
SPOKEN = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}


class ListeningDevTools(DevTools):
    """Collects errors: of scripts, of the console, and of requests that failed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.errors: list[str] = []
        self.requests: list[str] = []

    def _dispatch(self, message: Message) -> None:
        if message.method == "Network.requestWillBeSent":
            self.requests.append(message.params["request"]["url"])
        if message.method in SPOKEN and is_error(message.params):
            self.errors.append(f"{message.method}: {json.dumps(message.params)[:600]}")
        super()._dispatch(message)


def is_error(params: dict[str, Any]) -> bool:
    entry = params.get("entry", {})
    level = params.get("type") or entry.get("level") or "error"
    # The page asks again for a screenshot that is not stored yet, and a service that a busy machine delays (503).
    again = "/screenshot/" in entry.get("url", "") or "a status of 503 " in entry.get("text", "")
    return level in ("error", "assert", "warning") and not again


class Tab:
    def __init__(self, devtools: ListeningDevTools, session: str, shots: Path) -> None:
        self.devtools = devtools
        self.session = session
        self.shots = shots

    @property
    def errors(self) -> list[str]:
        return self.devtools.errors

    @property
    def requests(self) -> list[str]:
        return self.devtools.requests

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await self.devtools.call(method, self.session, WAIT_S, **params)

    async def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )

    async def dark(self, on: bool = True) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def open(self, url: str) -> None:
        async with interfaces.unchanged():
            await self.devtools.navigate(self.session, url)
            await self.until("!location.search.includes('token=')", "the page behind the one that takes the token")

    async def js(self, expression: str) -> Any:
        """Return the value of an expression, its promise's if it is one."""
        wanted = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = await self.call("Runtime.evaluate", **wanted)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str, what: str = "") -> Any:
        """Wait until an expression is true in the page, and return its value."""
        deadline = Deadline(WAIT_S)
        while not (value := await self.js(expression)):
            text = await self.js("document.body?.innerText.slice(0, 1500)")  # a page in navigation has no body yet
            assert not deadline.expired, f"{what or expression} did not come true; the page says: {text}; {self.errors}"
            await asyncio.sleep(0.05)
        return value

    async def go(self, place: str) -> None:
        """Open a page of the application by its address, and wait until it is there."""
        hash = f"#/{place}"
        await self.js(f"void (location.hash = {json.dumps(hash)})")
        await self.at(hash)

    async def at(self, hash: str) -> None:
        """Wait until the page that an address names is there."""
        shown = "document.querySelector('.page')?.dataset ?? {}"
        await self.until(f"(({shown}).place === {json.dumps(hash)} && ({shown}).ready === 'yes')", hash)

    async def click(self, selector: str) -> None:
        """Click an element once it is there; in one expression, for a page that changes may have no such one next."""
        clicked = f"((one) => !!one && (one.click(), true))(document.querySelector({json.dumps(selector)}))"
        await self.until(clicked, f"{selector} on the page")

    async def box(self, selector: str) -> tuple[float, float, float, float]:
        """Scroll an element into view; return left, top, width and height of its first line in the window."""
        place = "one.scrollIntoView({block: 'nearest'}), ((b) => b && [b.left, b.top, b.width, b.height])"
        box = f"((one) => one && ({place}(one.getClientRects()[0])))(document.querySelector({json.dumps(selector)}))"
        x, y, width, height = await self.until(box, selector)
        return x, y, width, height

    async def drag(self, selector: str, start: tuple[float, float], end: tuple[float, float] | None = None) -> None:
        """Press the mouse on an element and release it elsewhere on it; places are shares of its width and height.

        A page that goes on may move the element meanwhile; it is pressed again then. A link or button that is replaced
        while it is pressed is clicked by the page.
        """
        of_stage = selector.startswith(".stage")
        event = "pointerdown" if of_stage else "click"  # A stage captures the pointer.
        found, listeners = f"closest?.({json.dumps(selector)})", "window.hit = false"
        for name, noted in (
            (event, f"hit ||= !!e.target.{found}"),
            ("pointerdown", f"window.held = e.target.closest?.('a, button')?.{found}"),
            ("pointerup", "hit ||= window.held?.isConnected === false"),
        ):
            listeners += f", addEventListener('{name}', (e) => {{ {noted} }}, {ONCE})"
        for _ in range(9):
            box = x, y, width, height = await self.box(selector)
            places = [(x + across * width, y + down * height) for across, down in (start, end or start)]
            await self.js(f"void ({listeners})")
            kinds = ("mouseMoved", "mousePressed", "mouseMoved", "mouseReleased")
            for kind, place in zip(kinds, (places[0], places[0], places[1], places[1]), strict=True):
                where = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
                await self.call("Input.dispatchMouseEvent", type=kind, **where)
            is_hit = await self.js("window.hit !== false")  # A new page has no such variable.
            if is_hit and (not of_stage or await self.box(selector) == box):
                return
        raise AssertionError(f"{selector} was missed by nine presses")

    async def write(self, selector: str, text: str) -> None:
        """Click into a field with the mouse, and type."""
        await self.drag(selector, (0.5, 0.5))
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, code: int = 0) -> None:
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def navigation(self) -> dict[str, float]:
        """Return the page's own timing of its first opening, in milliseconds: to its first paint and to its load."""
        timing: dict[str, float] = await self.js(
            "(() => { const [n] = performance.getEntriesByType('navigation'),"
            " p = performance.getEntriesByName('first-contentful-paint')[0];"
            " return {paint: p ? p.startTime : NaN, load: n.loadEventEnd} })()"
        )
        return timing

    async def pages_p50(self) -> float:
        """Return the median of the times that the tab's pages took to open, as the page itself says."""
        return float(await self.until("document.getElementById('foot').innerText.match(/p50 (\\d+) ms/)?.[1]"))

    async def loaded(self) -> None:
        """Wait until every picture in view is there, those too that were not stored at first."""
        there = "i.complete && !i.classList.contains('missing')"
        await self.until(f"[...document.images].every((i) => !i.getAttribute('src') || {there})", "all pictures")

    async def tour(self, places: Sequence[str], prefix: str = "") -> None:
        """Open places wide and narrow, light and dark: none is wider than its window or has a problem."""
        for name, size, dark in (("wide", SIZE, False), ("dark", SIZE, True), ("phone", PHONE, False)):
            await self.resize(*size, phone=name == "phone")
            await self.dark(dark)
            for place in places:
                await self.go(place)
                wide = await self.js("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{place} is {wide} pixels too wide for {name}"
                await self.shot(f"{prefix}{place.partition('?')[0]}-{name}")
                assert not await self.js("document.querySelector('.problem')?.innerText")

    async def first_link(self, selector: str) -> str:
        """Return where the first of some links leads, without its ``#/``."""
        href = await self.until(f"document.querySelector({selector!r})?.getAttribute('href')", selector)
        return str(href).removeprefix("#/")

    async def count(self, selector: str) -> int:
        """Return how many elements there are."""
        return int(await self.js(f"document.querySelectorAll({selector!r}).length"))

    async def text(self, selector: str) -> str:
        """Return the visible text of the first of some elements."""
        return str(await self.js(f"document.querySelector({selector!r}).innerText"))

    async def shot(self, name: str) -> Path:
        await self.loaded()
        data = (await self.call("Page.captureScreenshot", format="png"))["data"]
        self.shots.mkdir(parents=True, exist_ok=True)
        path = self.shots / f"{name}.png"
        path.write_bytes(base64.b64decode(data))
        return path


@contextlib.asynccontextmanager
async def tab(shots: Path, *flags: str) -> AsyncIterator[Tab]:
    async with interfaces.unchanged(), browser_tab(shots, *flags) as page:
        yield page


@contextlib.asynccontextmanager
async def browser_tab(shots: Path, *flags: str) -> AsyncIterator[Tab]:
    """Yield a tab of a browser, whatever becomes of this machine's network interfaces."""
    profile = Path(tempfile.mkdtemp(prefix="dart-page-test-"))
    command = [chromium.find_browser(), *chromium.FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"]
    with pytest.MonkeyPatch.context() as patch:  # A person's browser has the priority of other programs.
        patch.setattr(chromium, "lower_priority", lambda pid: None)
        process, read_fd, write_fd = chromium.spawn(command)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MESSAGE_BYTES)
    await loop.connect_read_pipe(functools.partial(asyncio.StreamReaderProtocol, reader), os.fdopen(read_fd, "rb", 0))
    writer, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(write_fd, "wb", 0))
    devtools = ListeningDevTools(reader, writer, WAIT_S)
    try:
        target = (await devtools.call("Target.createTarget", url="about:blank"))["targetId"]
        session = (await devtools.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = Tab(devtools, session, shots)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.resize(*SIZE)
        yield page
    finally:
        await devtools.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait, 60)
        shutil.rmtree(profile, ignore_errors=True)
