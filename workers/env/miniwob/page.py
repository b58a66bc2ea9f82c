"""A MiniWoB++ page as an environment: typed actions become input events, the page's own evaluator the reward."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dart_streams import actions
from dart_streams.actions import Action, Click
from dart_streams.config import Isolation
from dart_streams.tasks import Task
from workers.env.environment import EnvironmentFault, Screen
from workers.env.miniwob.devtools import DevTools
from workers.env.miniwob.inputs import MOUSE, input_calls
from workers.env.miniwob.oracle import NEXT, next_action

WIDTH, HEIGHT = 160, 210
"""The page proper (pixels); the rest of the viewport shows the page's score board."""
CLIP = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
ORIGIN = "file://"
MAX_EPISODES = 500
"""Episodes after which a page is replaced, which bounds what the browser accumulates for it."""
NON_DETERMINISTIC = {"chase-circle", "click-pie", "moving-items"}
RESTARTABLE = frozenset(NEXT)
"""Pages whose problem can be restarted in the same document: tested for each page that has an oracle."""
AWAY = {"type": "mouseMoved", "x": 490, "y": 310}
"""Out of the page proper, where nothing is under the mouse."""
PROBLEM = files("workers.env.miniwob").joinpath("problem.js").read_text()
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
        reason = "is not determined by its seed" if name in NON_DETERMINISTIC else "does not exist"
        raise EnvironmentFault(f"MiniWoB++ page {name!r} {reason}: see {pages()} for the existing pages")
    return path.as_uri()


class MiniwobPage:
    """One episode at a time in a page of the browser.

    How much of it the next episode shares is ``env.miniwob.isolation``. ``context``: nothing; each has its own browser
    context. ``document``: the context; its storage and history are wiped and the document is loaded. ``problem``:
    the document too, where the page is restartable; its problem is started again, and what the last one left is taken
    away. A page that had a fault is never used again. ``keep`` takes a page back that may be.
    """

    def __init__(
        self,
        devtools: DevTools,
        isolation: Isolation,
        keep: "Callable[[MiniwobPage], None] | None",
        last_screen: bool,
    ) -> None:
        self.devtools = devtools
        self.context = ""
        self.session = ""
        self.isolation = isolation
        self.keep = keep
        self.last_screen = last_screen
        self.faulty = False
        self.episodes = 0
        self.instruction = ""
        self.page = ""
        self.done = False
        self.raw_reward = 0.0
        self._executed = ""

    async def open(self) -> None:
        """Create a browser context and a page in it; dispose of the context if the page does not come up."""
        call = self.devtools.call
        self.context = (await call("Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
        try:
            target = await call(
                "Target.createTarget", url="about:blank", browserContextId=self.context, width=500, height=320
            )
            attached = await call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            self.session = attached["sessionId"]
            await self._call("Page.enable")
            await self._call("Inspector.enable")
            await self._call("Emulation.setFocusEmulationEnabled", enabled=True)
        except (EnvironmentFault, asyncio.CancelledError):
            await self.dispose()
            raise

    async def reset(self, task: Task) -> Screen:
        """Start the task's problem, in a document loaded afresh or restored, and return the first screen."""
        before, self.page = self.page, task.page
        self.done, self.raw_reward, self._executed = False, 0.0, ""
        self.episodes += 1
        again = self.isolation == "problem" and before == task.page and task.page in RESTARTABLE
        instruction: str | None = None
        if again:  # None if this is not the document that was loaded
            await self._call(MOUSE, **AWAY)
            instruction = await self._in_problem(f"again({task.seed})")
        self.instruction = await self._load(task) if instruction is None else instruction
        return await self._screen()

    async def _load(self, task: Task) -> str:
        url = page_url(task.page)
        if self.episodes > 1:
            await self._call("Storage.clearDataForOrigin", origin=ORIGIN, storageTypes="all")
        with self._mark_faulty():
            await self.devtools.navigate(self.session, url)
        return str(await self._in_problem(f"first({task.seed})"))

    async def _in_problem(self, expression: str) -> Any:
        return await self.evaluate_script(f"(() => {{ {PROBLEM}; return {expression}; }})()")

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Execute an action given in screen pixels; a second call with the same id only looks again."""
        if action_id != self._executed:
            self._executed = action_id
            for method, params in input_calls(action):
                await self._call(method, **params)
            self.done, self.raw_reward = await self.evaluate_script(STATE)
        return await self._screen(self.last_screen or not (self.done or last))

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
        """Return the page to the pool; dispose of one that had a fault or is old."""
        if self.keep is not None and not self.faulty and self.episodes < MAX_EPISODES:
            with contextlib.suppress(EnvironmentFault):
                await self._call("Page.resetNavigationHistory")
                self.keep(self)
                return
        await self.dispose()

    async def dispose(self) -> None:
        """Close the browser context and all that is in it."""
        with contextlib.suppress(EnvironmentFault):  # The browser is gone, and the context with it.
            await self.devtools.call("Target.disposeBrowserContext", browserContextId=self.context)
        self.devtools.crashed.discard(self.session)

    async def evaluate_script(self, expression: str) -> Any:
        """Evaluate JavaScript in the page; raise :class:`EnvironmentFault` if it throws."""
        response = await self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if details := response.get("exceptionDetails"):
            self.faulty = True
            what = details.get("exception", {}).get("description") or json.dumps(details)
            raise EnvironmentFault(f"page {self.page}: {what[:300]}")
        return response["result"].get("value")

    async def _screen(self, wanted: bool = True) -> Screen:
        image = None
        if wanted:
            screenshot = await self._call("Page.captureScreenshot", format="png", clip=CLIP, optimizeForSpeed=True)
            image = base64.b64decode(screenshot["data"])
        return Screen(
            image=image,
            media_type="image/png",
            width=WIDTH,
            height=HEIGHT,
            instruction=self.instruction,
            done=self.done,
        )

    async def _call(self, method: str, **params: Any) -> dict[str, Any]:
        with self._mark_faulty():
            return await self.devtools.call(method, self.session, **params)

    @contextlib.contextmanager
    def _mark_faulty(self) -> Iterator[None]:
        """Mark the page faulty if a call fails or is cancelled: its state is unknown then."""
        try:
            yield
        except BaseException:
            self.faulty = True
            raise
