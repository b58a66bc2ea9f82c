"""A target of the browser (a tab) with its document, input and screens."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

from dart_streams.actions import Action, Drag
from workers.env.backends.miniwob.capture import HEIGHT, WIDTH, Screenshots
from workers.env.backends.miniwob.devtools import DRAGGED, DevTools
from workers.env.backends.miniwob.inputs import NOTHING_HELD, Call, input_calls, release_calls
from workers.env.backends.miniwob.page_scripts import DRAGS, native_script
from workers.env.environment import EnvironmentFault, Size


class Target:
    """One target; it is ``faulty`` once a call failed or was cancelled, since its state is unknown then."""

    def __init__(self, devtools: DevTools, capturing: Screenshots) -> None:
        self.devtools = devtools
        self.capturing = capturing
        self.session = ""
        self.target_id = ""
        self.layout = capturing.target["width"], capturing.target["height"]
        """Size of its viewport."""
        self.page = ""
        """Page of its document; empty before the first."""
        self.episodes = 0
        self.held = NOTHING_HELD
        """Keys and mouse buttons that the episode holds."""
        self.faulty = False

    async def open(self, context: str) -> None:
        """Create it in a browser context."""
        with self._mark_faulty():
            call, options = self.devtools.call, self.capturing.target
            created = await call("Target.createTarget", url="about:blank", browserContextId=context, **options)
            self.target_id = created["targetId"]
            attached = await call("Target.attachToTarget", targetId=self.target_id, flatten=True)
            self.session = attached["sessionId"]
            await self.call("Page.enable")
            await self.call("Inspector.enable")
            await self.call("Emulation.setFocusEmulationEnabled", enabled=True)
            await self.call("Page.addScriptToEvaluateOnNewDocument", source=native_script(WIDTH, HEIGHT))
            # Otherwise frames without scripts would not run this one either.
            await self.call("Runtime.enable")

    async def call(self, method: str, timeout_s: float | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of DevTools for this target; raises like :meth:`DevTools.call`."""
        with self._mark_faulty():
            return await self.devtools.call(method, self.session, timeout_s, **params)

    async def evaluate_script(self, expression: str, timeout_s: float | None = None, wait: bool = False) -> Any:
        """Evaluate JavaScript in the page and ``wait`` for its promise; raise EnvironmentFault if it fails."""
        params = {"expression": expression, "returnByValue": True, "awaitPromise": wait}
        response = await self.call("Runtime.evaluate", timeout_s, **params)
        if details := response.get("exceptionDetails"):
            self.faulty = True
            what = details.get("exception", {}).get("description") or json.dumps(details)
            raise EnvironmentFault(f"page {self.page}: {what[:300]}")
        return response["result"].get("value")

    async def load(self, page: str, url: str, layout: Size) -> None:
        """Load a page's document in a viewport of a size; raise :class:`EnvironmentFault` if it does not load."""
        with self._mark_faulty():
            if layout != self.layout:
                await self.capturing.lay_out(self.session, *layout)
            self.page, self.layout = page, layout
            await self.devtools.navigate(self.session, url)

    async def settle(self) -> None:
        """Draw the parts of a loaded document that must be drawn before its first screen."""
        with self._mark_faulty():
            await self.capturing.settle(self.session)

    async def move_away(self) -> None:
        """Move the mouse out of the page proper."""
        with self._mark_faulty():
            await self.capturing.move_away(self.session)

    async def act(self, action: Action) -> None:
        """Dispatch the input events of an action, given in page pixels."""
        with self._mark_faulty():
            calls, self.held = input_calls(action, self.held)
            if isinstance(action, Drag):
                await self._drag(action, calls)
            else:
                await self.capturing.perform(self.session, calls)

    async def _drag(self, action: Drag, calls: list[Call]) -> None:
        """Dispatch a drag; what it picks up of the page is dropped, as a drag of the browser's own takes its time."""
        *moves, release = calls
        with self.devtools.expect(self.session, DRAGGED) as picked:
            await self.call("Input.setInterceptDrags", enabled=True)
            await self.capturing.perform(self.session, moves)
            if await self.evaluate_script(DRAGS):
                async with asyncio.timeout(self.devtools.timeout_s):
                    await picked
            await self.call("Input.setInterceptDrags", enabled=False)
        if picked.done():
            place = {"x": action.to_x, "y": action.to_y, "data": picked.result()["data"]}
            for kind in ("dragEnter", "dragOver", "drop"):
                await self.call("Input.dispatchDragEvent", type=kind, **place)
        await self.capturing.perform(self.session, [release])

    async def release(self) -> None:
        """Release the keys and mouse buttons that the episode holds."""
        if self.held != NOTHING_HELD:
            with self._mark_faulty():
                held, self.held = self.held, NOTHING_HELD
                await self.capturing.perform(self.session, release_calls(held))

    async def draw(self) -> bytes:
        """Return the screen as a PNG."""
        with self._mark_faulty():
            return await self.capturing.draw(self.session)

    async def close(self) -> None:
        """Close it; never raises."""
        with contextlib.suppress(EnvironmentFault):
            await self.devtools.call("Target.closeTarget", targetId=self.target_id)
        self.devtools.crashed.discard(self.session)

    @contextlib.contextmanager
    def _mark_faulty(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.faulty = True
            raise
