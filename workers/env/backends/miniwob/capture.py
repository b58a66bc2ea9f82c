"""How a browser is made to draw: a frame for each screen, or frames all the time and a screenshot of the latest.

With begin-frame control nothing is drawn between screens, and only the page proper, without the rest of the viewport
that it is laid out in. It is Chromium's for its headless shell, and takes one frame at a time in the whole browser.
"""

import asyncio
import base64
from collections.abc import Callable
from typing import Any, Literal, Protocol

from dart_streams.config import Miniwob
from dart_streams.deadline import Deadline
from workers.env.backends.miniwob.devtools import DevTools
from workers.env.backends.miniwob.inputs import MOUSE, Call, split_batches, waits_for_frame
from workers.env.backends.miniwob.process_load import ProcessLoad, hangs
from workers.env.environment import EnvironmentFault

WIDTH, HEIGHT = Miniwob.screen
"""The page proper (pixels); the rest of the viewport shows the page's score board."""
LAYOUT_WIDTH, LAYOUT_HEIGHT = 500, 320
CLIP = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
AWAY: Call = (MOUSE, {"type": "mouseMoved", "x": 490, "y": 310})
"""Out of the page proper, where nothing is under the mouse."""
BEGIN_FRAME = "HeadlessExperimental.beginFrame"
FRAME_S = 2.0
"""A frame takes some 5 ms, and all pages wait for it. After this long the browser's processes say whether it hangs."""
POLL_INTERVAL_S = 0.5
"""Between two looks at the processes."""
STARVED_S = 30.0
"""How long a frame may take in a browser that gets no processor."""
IMAGE_S = 3.0
"""How long frames may lack their image."""
CRASH_S = 1.0
"""How long the frame of a page that hangs may take to fail once its renderer is ended."""
PNG = {"format": "png", "optimizeForSpeed": True}
REDRAW_S = 0.02
"""Pause before the frame is drawn again in which an input event was not answered, or that has no image."""


class Capturing(Protocol):
    """How the targets of one browser are made, given input and drawn. All raise EnvironmentFault."""

    name: Literal["begin-frame", "screenshot"]
    flags: tuple[str, ...]
    """Of the browser's command line."""
    target: dict[str, Any]
    """Of ``Target.createTarget``."""

    async def prepare(self, session: str) -> None:
        """Set up a new target."""

    async def settle(self, session: str) -> None:
        """Draw what must be drawn of a document that was loaded, before its first screen."""

    async def move_away(self, session: str) -> None:
        """Move the mouse to where nothing is under it."""

    async def perform(self, session: str, calls: list[Call]) -> None:
        """Dispatch the input events of one action, and return when the page has had them."""

    async def draw(self, session: str) -> bytes:
        """Return the page proper as it is, as a PNG of 160x210 pixels."""


class Screenshots:
    """Any Chromium: it draws when something changes, 60 times a second at most."""

    name: Literal["begin-frame", "screenshot"] = "screenshot"
    flags: tuple[str, ...] = (f"--window-size={LAYOUT_WIDTH},{LAYOUT_HEIGHT}",)
    target: dict[str, Any] = {"width": LAYOUT_WIDTH, "height": LAYOUT_HEIGHT}  # noqa: RUF012

    def __init__(self, devtools: DevTools, load: Callable[[], ProcessLoad]) -> None:
        self.devtools = devtools

    async def prepare(self, session: str) -> None:
        """See :class:`Capturing`."""

    async def settle(self, session: str) -> None:
        """See :class:`Capturing`."""

    async def move_away(self, session: str) -> None:
        """See :class:`Capturing`."""
        await self.perform(session, [AWAY])

    async def perform(self, session: str, calls: list[Call]) -> None:
        """See :class:`Capturing`."""
        for batch in split_batches(calls):
            await asyncio.gather(*(self.devtools.call(method, session, **params) for method, params in batch))

    async def draw(self, session: str) -> bytes:
        """See :class:`Capturing`."""
        shot = await self.devtools.call("Page.captureScreenshot", session, None, clip=CLIP, **PNG)
        return base64.b64decode(shot["data"])


class BeginFrames:
    """Chromium's headless shell: it draws a frame for each call, and no other.

    Two frames at once would end its GPU process, so one that is under way is waited for whatever becomes of the
    episode that wanted it. A page that hangs in a frame loses its renderer; if that does not end the frame, or frames
    bring no image, the browser is of no further use and is ended.
    """

    name: Literal["begin-frame", "screenshot"] = "begin-frame"
    flags: tuple[str, ...] = (
        f"--window-size={WIDTH},{HEIGHT}",
        "--enable-begin-frame-control",
        "--run-all-compositor-stages-before-draw",
        "--disable-new-content-rendering-timeout",
        "--allow-pre-commit-input",
    )
    target: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "enableBeginFrameControl": True}  # noqa: RUF012

    def __init__(self, devtools: DevTools, load: Callable[[], ProcessLoad]) -> None:
        self.devtools = devtools
        self.load = load
        self._one_at_a_time = asyncio.Lock()

    async def prepare(self, session: str) -> None:
        """Lay the target out in the whole viewport, and draw the page proper only."""
        size = {"width": LAYOUT_WIDTH, "height": LAYOUT_HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        await self.devtools.call("Emulation.setDeviceMetricsOverride", session, None, **size, dontSetVisibleSize=True)

    async def settle(self, session: str) -> None:
        """See :class:`Capturing`."""
        await self._frame(session)

    async def move_away(self, session: str) -> None:
        """Send the event only: it is answered with the next frame."""
        method, params = AWAY
        self.devtools.send(method, session, **params)

    async def perform(self, session: str, calls: list[Call]) -> None:
        """See :class:`Capturing`."""
        for batch in split_batches(calls):
            if waits_for_frame(batch[-1]):
                await self._perform_in_frames(session, batch)
            else:
                await asyncio.gather(*(self.devtools.call(method, session, **params) for method, params in batch))

    async def _perform_in_frames(self, session: str, batch: list[Call]) -> None:
        await self.devtools.call("Runtime.evaluate", session, expression="0")  # A page that hangs is to draw nothing.
        answers = asyncio.gather(*(self.devtools.call(method, session, **params) for method, params in batch))
        answers.add_done_callback(lambda done: done.cancelled() or done.exception())  # A frame may fail before it does.
        try:
            # One or two frames, more if they outrun the event on its way to the page.
            while not answers.done():
                await self._frame(session)
                await asyncio.wait({answers}, timeout=REDRAW_S)
        except BaseException:
            answers.cancel()
            raise
        await answers

    async def draw(self, session: str) -> bytes:
        """See :class:`Capturing`."""
        frame = await self._frame(session, screenshot=PNG)
        return base64.b64decode(frame["screenshotData"])

    async def _frame(self, session: str, **params: Any) -> dict[str, Any]:
        frame = asyncio.create_task(self._draw_alone(session, params), name="frame")
        frame.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(frame)

    async def _draw_alone(self, session: str, params: dict[str, Any]) -> dict[str, Any]:
        async with self._one_at_a_time:
            deadline = Deadline(IMAGE_S)
            while True:
                answer = self.devtools.send(BEGIN_FRAME, session, **params)
                if await self._hangs(answer):
                    await self._end_page(session, answer)
                frame = await answer
                if "screenshot" not in params or "screenshotData" in frame:
                    return frame
                # The surface of a new target may not be there yet.
                if deadline.expired:
                    await self._end_browser(f"no frame had an image within {IMAGE_S:g} s")
                await asyncio.sleep(REDRAW_S)

    async def _hangs(self, frame: "asyncio.Future[dict[str, Any]]") -> bool:
        """Wait for a frame; return whether it will never be drawn."""
        if (await asyncio.wait({frame}, timeout=FRAME_S))[0]:
            return False
        deadline = Deadline(STARVED_S - FRAME_S)
        first = before = await asyncio.to_thread(self.load)
        while not (await asyncio.wait({frame}, timeout=POLL_INTERVAL_S))[0]:
            now = await asyncio.to_thread(self.load)
            if deadline.expired or hangs(first, before, now):
                return True
            before = now
        return False

    async def _end_page(self, session: str, frame: "asyncio.Future[dict[str, Any]]") -> None:
        """End the renderer of a page that does not draw, and with it the frame, or else the browser."""
        crash = self.devtools.send("Page.crash", session)
        if not (await asyncio.wait({frame}, timeout=CRASH_S))[0]:
            await self._end_browser("a frame was not drawn, also without its page")
        await asyncio.wait({crash}, timeout=CRASH_S)
        raise EnvironmentFault("the page did not draw")

    async def _end_browser(self, reason: str) -> None:
        await self.devtools.close(reason)
        raise EnvironmentFault(reason)
