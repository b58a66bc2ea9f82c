"""Capture of screens: a frame drawn for each screen, or a screenshot of frames that are drawn all the time.

With begin-frame control nothing is drawn between screens, and only the page proper is drawn, without the rest of the
viewport. Only Chromium's headless shell has it, and the whole browser draws one frame at a time.
"""

import asyncio
import base64
from collections.abc import Callable
from typing import Any

from dart_streams.config import Miniwob
from dart_streams.deadline import Deadline
from workers.env.backends.miniwob.devtools import DevTools
from workers.env.backends.miniwob.inputs import MOUSE, Call, split_batches, waits_for_frame
from workers.env.backends.miniwob.process_load import ProcessLoad, hangs
from workers.env.environment import EnvironmentFault

WIDTH, HEIGHT = Miniwob.screen
"""Size of the page proper in pixels; the rest of the viewport shows the page's score board."""
LAYOUT_WIDTH, LAYOUT_HEIGHT = 500, 320
"""Size of the viewport that MiniWoB++'s pages are laid out in."""
CLIP = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
AWAY: Call = (MOUSE, {"type": "mouseMoved", "x": 490, "y": 310})
"""Move of the mouse out of the page proper, where nothing is under it."""
OFF_POINTER = {"left": 1, "top": 1}
"""Place of a target. The browser's own pointer rests at (0, 0) and would move in the first document over it."""
BEGIN_FRAME = "HeadlessExperimental.beginFrame"
FRAME_S = 2.0
"""Time after which a frame is late: it takes some 5 ms, and all pages wait for it. Then the load of the browser's
processes decides whether it hangs."""
POLL_INTERVAL_S = 0.5
STARVED_S = 30.0
"""Time limit of a frame in a browser that gets no processor."""
IMAGE_S = 3.0
"""Time after which a frame without an image is late; then the load decides too."""
CRASH_S = 1.0
"""Time limit for the frame of a hanging page to fail once its renderer has ended."""
PNG = {"format": "png", "optimizeForSpeed": True}
REDRAW_S = 0.02
"""Pause before a frame is drawn again that has no image, or in which an input event was not answered."""


class Screenshots:
    """Capture in any Chromium, which draws when something changes, 60 times a second at most.

    ``flags`` belong to the browser's command line, ``target`` to ``Target.createTarget``. All methods raise
    EnvironmentFault.
    """

    name = "screenshot"
    draws = True
    """Whether the browser draws frames by itself."""
    flags: tuple[str, ...] = (f"--window-size={LAYOUT_WIDTH},{LAYOUT_HEIGHT}",)
    target: dict[str, Any] = {"width": LAYOUT_WIDTH, "height": LAYOUT_HEIGHT, **OFF_POINTER}  # noqa: RUF012

    def __init__(self, devtools: DevTools, load: Callable[[], ProcessLoad]) -> None:
        self.devtools = devtools
        self.load = load

    async def lay_out(self, session: str, width: int, height: int) -> None:
        """Lay a target out in a viewport of this size; the page proper alone is drawn."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.devtools.call("Emulation.setDeviceMetricsOverride", session, None, **size, dontSetVisibleSize=True)

    async def settle(self, session: str) -> None:
        """Draw the parts of a loaded document that must be drawn before its first screen."""

    async def move_away(self, session: str) -> None:
        """Move the mouse out of the page proper."""
        await self.perform(session, [AWAY])

    async def perform(self, session: str, calls: list[Call]) -> None:
        """Dispatch the input events of one action, and return once the page has handled them."""
        for batch in split_batches(calls):
            await self._send(session, batch)

    async def draw(self, session: str) -> bytes:
        """Return the page proper as a PNG of 160x210 pixels."""
        shot = await self.devtools.call("Page.captureScreenshot", session, None, clip=CLIP, **PNG)
        return base64.b64decode(shot["data"])

    def _send(self, session: str, batch: list[Call]) -> "asyncio.Future[list[dict[str, Any]]]":
        return asyncio.gather(*(self.devtools.call(method, session, **params) for method, params in batch))


class LateFrame:
    """A frame that is late or has no image, by the loads of the browser's processes since then."""

    def __init__(self, load: Callable[[], ProcessLoad]) -> None:
        self.load = load
        self.loads: list[ProcessLoad] = []
        self.deadline: Deadline | None = None

    async def is_lost(self) -> bool:
        """Look at the load; return whether the frame will never come. The first look never decides."""
        self.deadline = self.deadline or Deadline(STARVED_S - FRAME_S)
        self.loads.append(await asyncio.to_thread(self.load))
        if len(self.loads) == 1:
            return False
        return self.deadline.expired or hangs(self.loads[0], *self.loads[-2:])


class BeginFrames(Screenshots):
    """Capture in Chromium's headless shell, which draws a frame for each call, and no other.

    Two concurrent frames would end its GPU process, so a frame is waited for even if its episode is cancelled. A page
    that hangs in a frame loses its renderer. If that does not end the frame, or frames have no image, the browser ends.
    """

    name = "begin-frame"
    draws = False
    flags = (
        f"--window-size={WIDTH},{HEIGHT}",
        "--enable-begin-frame-control",
        "--run-all-compositor-stages-before-draw",
        "--disable-new-content-rendering-timeout",
        "--allow-pre-commit-input",
    )
    target = {"width": WIDTH, "height": HEIGHT, "enableBeginFrameControl": True, **OFF_POINTER}  # noqa: RUF012

    def __init__(self, devtools: DevTools, load: Callable[[], ProcessLoad]) -> None:
        super().__init__(devtools, load)
        self._one_at_a_time = asyncio.Lock()

    async def settle(self, session: str) -> None:
        """Draw a frame."""
        await self._frame(session)

    async def move_away(self, session: str) -> None:
        """Send the event without waiting: the next frame answers it."""
        method, params = AWAY
        self.devtools.send(method, session, **params)

    async def perform(self, session: str, calls: list[Call]) -> None:
        """Dispatch the input events, and draw frames for those that are answered with a frame."""
        for batch in split_batches(calls):
            if waits_for_frame(batch[-1]):
                await self._perform_in_frames(session, batch)
            else:
                await self._send(session, batch)

    async def _perform_in_frames(self, session: str, batch: list[Call]) -> None:
        await self.devtools.call("Runtime.evaluate", session, expression="0")  # A hanging page must draw nothing.
        answers = self._send(session, batch)
        answers.add_done_callback(lambda done: done.cancelled() or done.exception())  # A frame may fail before it does.
        try:
            # One or two frames; more if they overtake the event on its way to the page.
            while not answers.done():
                await self._frame(session)
                await asyncio.wait({answers}, timeout=REDRAW_S)
        except BaseException:
            answers.cancel()
            raise
        await answers

    async def draw(self, session: str) -> bytes:
        """Draw a frame, and return it as a PNG of 160x210 pixels."""
        frame = await self._frame(session, screenshot=PNG)
        return base64.b64decode(frame["screenshotData"])

    async def _frame(self, session: str, **params: Any) -> dict[str, Any]:
        frame = asyncio.create_task(self._draw_alone(session, params), name="frame")
        frame.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(frame)

    async def _draw_alone(self, session: str, params: dict[str, Any]) -> dict[str, Any]:
        async with self._one_at_a_time:
            deadline, late = Deadline(IMAGE_S), LateFrame(self.load)
            while True:
                answer = self.devtools.send(BEGIN_FRAME, session, **params)
                if await self._hangs(answer):
                    await self._end_page(session, answer)
                frame = await answer
                if "screenshot" not in params or "screenshotData" in frame:
                    return frame
                # The surface of a new target may not be there yet.
                if deadline.expired:
                    if await late.is_lost():
                        await self._end_browser(f"no frame had an image within {IMAGE_S:g} s")
                    deadline = Deadline(POLL_INTERVAL_S)
                await asyncio.sleep(REDRAW_S)

    async def _hangs(self, frame: "asyncio.Future[dict[str, Any]]") -> bool:
        """Wait for a frame; return whether it will never be drawn."""
        if (await asyncio.wait({frame}, timeout=FRAME_S))[0]:
            return False
        late = LateFrame(self.load)
        while not await late.is_lost():
            if (await asyncio.wait({frame}, timeout=POLL_INTERVAL_S))[0]:
                return False
        return True

    async def _end_page(self, session: str, frame: "asyncio.Future[dict[str, Any]]") -> None:
        """End the renderer of a page that does not draw, and the browser if the frame does not end then."""
        crash = self.devtools.send("Page.crash", session)
        if not (await asyncio.wait({frame}, timeout=CRASH_S))[0]:
            await self._end_browser("a frame was not drawn, also without its page")
        await asyncio.wait({crash}, timeout=CRASH_S)
        raise EnvironmentFault("the page did not draw")

    async def _end_browser(self, reason: str) -> None:
        await self.devtools.close(reason)
        raise EnvironmentFault(reason)
