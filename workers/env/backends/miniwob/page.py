"""A MiniWoB++ page as an environment: typed actions become input events, the page's own evaluator the reward."""

import math
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

from dart_streams.actions import Action
from dart_streams.config import Isolation, Miniwob
from dart_streams.config.tasks import Task
from workers.env import metrics
from workers.env.backends.miniwob.capture import HEIGHT, LAYOUT_HEIGHT, LAYOUT_WIDTH, WIDTH
from workers.env.backends.miniwob.context_pool import PooledContext
from workers.env.backends.miniwob.oracle import NEXT, as_action, next_action
from workers.env.backends.miniwob.page_scripts import STATE, at_rest, in_problem
from workers.env.backends.miniwob.pooled_browser import PooledBrowser
from workers.env.backends.miniwob.target import Target
from workers.env.environment import EnvironmentFault, NoOracle, Screen

ORIGIN = "file://"
NON_DETERMINISTIC = {"chase-circle", "click-pie", "moving-items"}
RESTARTABLE = frozenset(NEXT)
"""Pages whose problem can be restarted in the same document; a test checks each page that has an oracle."""
FRAMES = 3
"""Frames that a page may draw before its screen is taken: one that is animated never rests."""
SOLVED = 0.85
"""Minimum raw reward of a solution. Pages that measure the distance of a click give their best pixel 0.96 to 1. Pages
that count right answers give at most 0.84 for one wrong of 12."""
ANY = ""
"""Document of a context that is loaded afresh for each episode."""


@cache
def page_folder() -> Path:
    """Return the folder of the pages in the miniwob package."""
    import miniwob

    return Path(miniwob.__file__).parent / "html" / "miniwob"


def page_url(name: str, own: str = "") -> str:
    """Return the address of a page of MiniWoB++; raise :class:`EnvironmentFault` if it has none of this name.

    ``own`` is the folder of the user's pages, which has none of this name either.
    """
    path = page_folder() / f"{name}.html"
    if name in NON_DETERMINISTIC or not path.is_file():
        reason = "is not determined by its seed" if name in NON_DETERMINISTIC else "does not exist"
        elsewhere = f", and {own} has no {name}.html" if own else ""
        raise EnvironmentFault(
            f"MiniWoB++ page {name!r} {reason}{elsewhere}: see {page_folder()} for the existing pages"
        )
    return path.as_uri()


def document_of(page: str, isolation: Isolation) -> str:
    """Return the document for an episode of ``page``: the page's own if its problem can be restarted."""
    return page if isolation == "problem" and page in RESTARTABLE else ANY


def reward_of(raw_reward: float, partial_credit: bool) -> float:
    """Map a page's raw reward (-1 to 1) to [0, 1].

    From :data:`SOLVED` on it is 1; less is the page's partial credit, or 0 without; no finite number is 0.
    """
    if not math.isfinite(raw_reward):
        return 0.0
    if raw_reward >= SOLVED:
        return 1.0
    return max(raw_reward, 0.0) if partial_credit else 0.0


class MiniwobPage:
    """One episode in a pooled browser context.

    ``env.miniwob.isolation`` says what the next episode shares. ``context``: nothing. ``document``: the context; its
    storage and history are wiped, and the document is loaded. ``problem``: also the document of a restartable page,
    whose problem is restarted and cleaned up. A context that had a fault is not used again.
    """

    layout = LAYOUT_WIDTH, LAYOUT_HEIGHT
    """Size of the viewport that the page is laid out in."""
    state_script = STATE
    """The script that yields whether the episode has ended, and its raw reward."""

    def __init__(self, browser: PooledBrowser, pooled: PooledContext, settings: Miniwob) -> None:
        self.browser = browser
        self.pooled = pooled
        self._closed = False
        self.isolation = settings.isolation
        self.last_screen = settings.last_screen
        self.partial_credit = settings.partial_credit
        self.settings = settings
        self.instruction = ""
        self.page = ""
        self.done = False
        self.raw_reward = 0.0
        self._executed = ""

    def document(self, task: Task) -> str:
        """Return the document of the context in which an episode of ``task`` is played."""
        return document_of(task.page, self.isolation)

    def url(self, task: Task) -> str:
        """Return the address of the task's page; raise :class:`EnvironmentFault` if there is none."""
        return page_url(task.page, self.settings.pages_folder)

    def next_script(self, task: Task) -> str:
        """Return the script that yields the next correct action; raise :class:`EnvironmentFault` without an oracle."""
        return next_action(task.page)

    async def reset(self, task: Task) -> Screen:
        """Start the task's problem in a loaded or restored document, and return the first screen."""
        document = self.document(task)
        if self.page:
            await self.pooled.begin(document)  # As after an episode: it may leave things when its document goes.
        self.page = task.page
        self.done, self.raw_reward, self._executed = False, 0.0, ""
        self.pooled.episodes += 1
        target = await self.pooled.show(document)
        target.episodes += 1
        instruction: str | None = None
        if document and target.page == task.page:  # The result is None if the page has left this document.
            await target.move_away()
            instruction = await target.evaluate_script(in_problem(f"again({task.seed})"))
        if instruction is not None:
            metrics.problems_restarted.add(1)
        self.instruction = await self._load(target, task) if instruction is None else instruction
        await self._at_rest("null")
        return await self._screen()

    async def _load(self, target: Target, task: Task) -> str:
        metrics.documents_loaded.add(1)
        url = self.url(task)
        if self.pooled.episodes > 1:
            await target.call("Storage.clearDataForOrigin", origin=ORIGIN, storageTypes="all")
        await target.load(task.page, url, self.layout)
        instruction = await self._start(target, task)
        await target.settle()
        return instruction

    async def _start(self, target: Target, task: Task) -> str:
        await target.settle()  # A document may miss input that comes before its first frame.
        await target.move_away()
        instruction = str(await target.evaluate_script(in_problem(f"first({task.seed})")))
        await target.evaluate_script(in_problem("loadIcons()"), wait=True)
        return instruction

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Execute an action, given in screen pixels, once per id."""
        if action_id != self._executed:
            self._executed = action_id
            await self.target.act(action)
        self.done, self.raw_reward = await self._at_rest(self.state_script)
        return await self._screen(self.last_screen or not (self.done or last))

    async def evaluate(self) -> float:
        """Return the reward, without MiniWoB++'s time discount, which would reward a policy's low latency.

        Of an episode that goes on it is what the page says now.
        """
        if not self.done:
            _, self.raw_reward = await self._at_rest(self.state_script)
        return self.reward()

    def reward(self) -> float:
        """Return the reward of the page's own in [0, 1]."""
        return reward_of(self.raw_reward, self.partial_credit)

    async def _at_rest(self, script: str) -> Any:
        """Return what a script yields once the page has nothing to do, as far as it does not always have."""
        for _ in range(FRAMES):
            wants_frame, result = await self.target.evaluate_script(
                at_rest(script, self.target.capturing.draws), wait=True
            )
            if not wants_frame:
                break
            await self.target.settle()
        return result

    async def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        """Yield the oracle's actions, each computed from the page's current state."""
        while not self.done:
            result = await self.evaluate_script(self.next_script(task))
            if result is None:
                return
            if "missing" in result:
                raise NoOracle(f"page {task.page!r} has no task.demonstrate(): its tasks cannot be demonstrated")
            yield as_action(result)

    async def close(self) -> None:
        """Give the context back, once."""
        if not self._closed:
            self._closed = True
            await self.browser.give_back(self.pooled)

    async def evaluate_script(self, expression: str) -> Any:
        """Evaluate JavaScript in the page; raise :class:`EnvironmentFault` if it throws."""
        return await self.target.evaluate_script(expression)

    @property
    def target(self) -> Target:
        """Target of the episode; raises EnvironmentFault before the first reset."""
        if self.pooled.shown is None:
            raise EnvironmentFault("the page was not reset")
        return self.pooled.shown

    async def _screen(self, with_image: bool = True) -> Screen:
        return Screen(
            image=await self.target.draw() if with_image else None,
            media_type="image/png",
            width=WIDTH,
            height=HEIGHT,
            instruction=self.instruction,
            done=self.done,
        )
