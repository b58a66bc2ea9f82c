"""A MiniWoB++ page as an environment: typed actions become input events, the page's own evaluator the reward."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dart_streams import actions
from dart_streams.actions import Action, Click
from dart_streams.tasks import Task
from workers.env.environment import EnvironmentFault, Screen
from workers.env.miniwob.devtools import DevTools
from workers.env.miniwob.inputs import input_calls
from workers.env.miniwob.oracle import next_action

WIDTH, HEIGHT = 160, 210
"""The page proper (pixels); the rest of the viewport shows the page's own score board."""
VIEWPORT = {"width": 500, "height": 320, "deviceScaleFactor": 1, "mobile": False}
CLIP = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
NON_DETERMINISTIC = {"chase-circle", "click-pie", "moving-items"}
START = files("workers.env.miniwob").joinpath("start.js").read_text()
STATE = """(() => {
  if (WOB_DONE_GLOBAL && core.cover_div) core.cover_div.style.display = 'none';
  return [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL];
})()"""


@cache
def pages() -> Path:
    """Return the folder of the page files, from the miniwob package."""
    import miniwob

    return Path(miniwob.__file__).parent / "html" / "miniwob"


def page_url(name: str) -> str:
    """Return the address of a page; raise :class:`EnvironmentFault` if MiniWoB++ has none of this name."""
    path = pages() / f"{name}.html"
    if name in NON_DETERMINISTIC or not path.is_file():
        why = "is not determined by its seed" if name in NON_DETERMINISTIC else "does not exist"
        raise EnvironmentFault(f"MiniWoB++ page {name!r} {why}: see {pages()} for the pages there are")
    return path.as_uri()


class MiniwobPage:
    """One episode in a browser context of its own."""

    def __init__(self, devtools: DevTools, context: str, session: str) -> None:
        self.devtools = devtools
        self.context = context
        self.session = session
        self.instruction = ""
        self.page = ""
        self.done = False
        self.raw_reward = 0.0
        self._executed = ""

    @classmethod
    async def open(cls, devtools: DevTools) -> "MiniwobPage":
        """Make a context and a page in it; a context whose page does not come up is disposed of."""
        context = (await devtools.call("Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
        page = cls(devtools, context, "")
        try:
            target = await devtools.call(
                "Target.createTarget", url="about:blank", browserContextId=context, width=500, height=320
            )
            attached = await devtools.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            page.session = attached["sessionId"]
            await page._call("Page.enable")
            await page._call("Inspector.enable")
            await page._call("Emulation.setFocusEmulationEnabled", enabled=True)
        except (EnvironmentFault, asyncio.CancelledError):
            await page.close()
            raise
        return page

    async def reset(self, task: Task) -> Screen:
        """Load the page afresh, seed it, start its problem, and return the first screen."""
        self.page, self.done, self.raw_reward = task.page, False, 0.0
        await self.devtools.navigate(self.session, page_url(task.page))
        self.instruction = str(await self.evaluate_script(f"({START})({task.seed})"))
        return await self._screen()

    async def step(self, action: Action, action_id: str) -> Screen:
        """Execute an action given in screen pixels; a second call with the same id only looks again."""
        if action_id != self._executed:
            self._executed = action_id
            for method, params in input_calls(action):
                await self._call(method, **params)
            self.done, self.raw_reward = await self.evaluate_script(STATE)
        return await self._screen()

    async def evaluate(self) -> float:
        """Return the page's raw reward clipped to [0, 1].

        MiniWoB++ gives -1..1 with negative values for failures of different badness and 0 while nothing is decided;
        partial credit above 0 is kept, the time discount is not: it would turn the policy's latency into reward.
        """
        return min(max(float(self.raw_reward), 0.0), 1.0)

    async def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        """Yield the oracle's actions, each computed from the page as it then is."""
        while not self.done:
            found = await self.evaluate_script(next_action(task.page))
            if found is None:
                return
            yield actions.Type(found["text"]) if "text" in found else Click(found["x"], found["y"])

    async def close(self) -> None:
        """Dispose of the context and all that the episode left in it."""
        with contextlib.suppress(EnvironmentFault):  # The browser is gone, and the context with it.
            await self.devtools.call("Target.disposeBrowserContext", browserContextId=self.context)
        self.devtools.forget(self.session)

    async def evaluate_script(self, expression: str) -> Any:
        """Evaluate JavaScript in the page; raise :class:`EnvironmentFault` if it throws."""
        answer = await self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if details := answer.get("exceptionDetails"):
            what = details.get("exception", {}).get("description") or json.dumps(details)
            raise EnvironmentFault(f"page {self.page}: {what[:300]}")
        return answer["result"].get("value")

    async def _screen(self) -> Screen:
        shot = await self._call("Page.captureScreenshot", format="png", clip=CLIP, optimizeForSpeed=True)
        return Screen(
            image=base64.b64decode(shot["data"]),
            media_type="image/png",
            width=WIDTH,
            height=HEIGHT,
            instruction=self.instruction,
            done=self.done,
        )

    async def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return await self.devtools.call(method, self.session, **params)
