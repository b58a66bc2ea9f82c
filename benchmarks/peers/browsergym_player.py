"""Plays recorded episodes in BrowserGym or plain Playwright: ``browsergym_player.py VARIANT PLAYS BROWSER``.

Runs in ``.venv/browsergym``, one environment a process. For each line ``{"seconds": S, "start": N}`` on stdin it plays
episodes from the N-th on until the time is over, and answers with a line of JSON. ``MINIWOB_URL`` says where the pages
are. Variants:

``default``
    BrowserGym's MiniWoB++ environment as it comes: document, accessibility tree and screenshot for each step.
``lean``
    The same with what its options save: no delays (so no animations either) and no tree, but a screenshot of the page
    proper.
``playwright``
    Without BrowserGym: one browser and one page, navigated afresh for each episode.
"""

import contextlib
import ctypes
import itertools
import json
import os
import sys
import time
from typing import Any, Protocol

import playwright.sync_api
from playwright.sync_api import BrowserType

CLIP = {"x": 0, "y": 0, "width": 160, "height": 210}
STATE = "() => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"
START = "seed => { Math.seedrandom(seed); core.EPISODE_MAX_TIME = 1e6; core.startEpisodeReal(); }"
DISABLE_ANIMATIONS = "() => { if (window.jQuery) jQuery.fx.off = true; }"
"""Without delays a click would meet a moving page."""
PR_SET_CHILD_SUBREAPER = 36
SAME_ZOOM = 1.5
"""Scale of BrowserGym's screenshots and action coordinates."""


class ActionFailed(Exception):
    """BrowserGym reports a failed action."""


class Player(Protocol):
    """An environment that plays one episode at a time."""

    def reset(self, page: str, seed: int) -> None:
        """Start an episode and take its first screen."""

    def click(self, x: int, y: int) -> tuple[bool, float]:
        """Click and take a screen; return whether the episode ended, and its raw reward."""

    def rest(self) -> None:
        """Release what the next episode does not use."""

    def close(self) -> None:
        """End the browser."""


class GymPlayer:
    """BrowserGym's environment, started on a given problem."""

    def __init__(self, lean: bool) -> None:
        from browsergym.core.action.highlevel import HighLevelActionSet
        from browsergym.core.env import BrowserEnv
        from browsergym.miniwob import ALL_MINIWOB_TASKS

        self.tasks = {task.subdomain: seed_task(task) for task in ALL_MINIWOB_TASKS}
        options = {"slow_mo": 0, "pre_observation_delay": 0.0, "use_raw_page_output": True} if lean else {}
        self.lean = lean
        by_pixels = HighLevelActionSet(subsets=["coord"]).to_python_code
        self.env = BrowserEnv(task_entrypoint=self.tasks["click-test"], action_mapping=by_pixels, **options)

    def reset(self, page: str, seed: int) -> None:
        """See :class:`Player`."""
        self.env.task_entrypoint = self.tasks[page]
        self.env.reset(seed=seed)
        if self.lean:
            self.env.page.evaluate(DISABLE_ANIMATIONS)
        self.look()

    def click(self, x: int, y: int) -> tuple[bool, float]:
        """See :class:`Player`."""
        *_, info = self.env.step(f"mouse_click({x * SAME_ZOOM}, {y * SAME_ZOOM})")
        if self.env.last_action_error:
            raise ActionFailed(self.env.last_action_error)
        self.look()
        return info["task_info"]["DONE_GLOBAL"], info["task_info"]["RAW_REWARD_GLOBAL"]

    def look(self) -> None:
        """Take the screenshot that the lean environment leaves out."""
        if self.lean:
            self.env.page.screenshot(clip=CLIP)

    def rest(self) -> None:
        """See :class:`Player`; each reset starts a new browser."""
        self.close()

    def close(self) -> None:
        """See :class:`Player`."""
        self.env.close()


def seed_task(task: Any) -> Any:
    """Return a task class whose page gets the seed itself."""

    class SeededTask(task):
        def __init__(self, seed: int, **options: Any) -> None:
            super().__init__(seed, **options)
            self.random = self
            self.seed = seed

        def randint(self, low: int, high: int) -> int:
            return self.seed

    return SeededTask


class PagePlayer:
    """Plain Playwright."""

    def __init__(self) -> None:
        self.driver = playwright.sync_api.sync_playwright().start()
        self.browser: Any = None
        self.page: Any = None

    def reset(self, page: str, seed: int) -> None:
        """See :class:`Player`."""
        if self.browser is None:
            self.browser = self.driver.chromium.launch()
            self.page = self.browser.new_page(viewport={"width": 500, "height": 320})
        self.page.goto(f"{os.environ['MINIWOB_URL']}{page}.html")
        self.page.evaluate(DISABLE_ANIMATIONS)
        self.page.evaluate(START, seed)
        self.page.screenshot(clip=CLIP)

    def click(self, x: int, y: int) -> tuple[bool, float]:
        """See :class:`Player`."""
        self.page.mouse.click(x, y)
        done, reward = self.page.evaluate(STATE)
        self.page.screenshot(clip=CLIP)
        return done, reward

    def rest(self) -> None:
        """See :class:`Player`; the page stays."""

    def close(self) -> None:
        """See :class:`Player`."""
        if self.browser is not None:
            self.browser.close()
        self.browser = None


def play(player: Player, plays: list[dict[str, Any]], start: int, seconds: float) -> dict[str, Any]:
    """Play episodes from ``start`` on until the time is over; return times (seconds) and results."""
    resets, steps, ends = list[float](), list[float](), list[tuple[int, bool, float]]()
    began = time.perf_counter()
    number, faults = start, 0
    while time.perf_counter() - began < seconds:
        one = plays[number % len(plays)]
        done, reward = False, 0.0
        times = [time.perf_counter()]
        try:
            player.reset(one["page"], one["seed"])
            times.append(time.perf_counter())
            for x, y in one["clicks"]:
                done, reward = player.click(x, y)
                times.append(time.perf_counter())
                if done:
                    break
            ends.append((number % len(plays), done, reward))
        except (playwright.sync_api.Error, ActionFailed):
            faults += 1
            player.close()
        taken = [after - before for before, after in itertools.pairwise(times)]
        resets += taken[:1]
        steps += taken[1:]
        number += 1
    elapsed = time.perf_counter() - began
    return {"seconds": elapsed, "reset_s": resets, "step_s": steps, "ends": ends, "faults": faults}


def use_browser(path: str) -> None:
    """Make Playwright start this browser by default; BrowserGym starts two, and sets one path only."""
    launch = BrowserType.launch
    BrowserType.launch = lambda self, **options: launch(self, **{"executable_path": path} | options)


def adopt_orphans() -> None:
    """Become the parent of orphaned renderers, so that their CPU time counts (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> None:
    """Reap ended children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(variant: str, file: str, browser: str) -> None:
    """Serve turns until stdin ends."""
    adopt_orphans()
    use_browser(browser)
    with open(file, encoding="utf-8") as read:  # noqa: PTH123
        plays = json.load(read)
    player: Player = PagePlayer() if variant == "playwright" else GymPlayer(lean=variant == "lean")
    for line in sys.stdin:
        turn = json.loads(line)
        result = play(player, plays, turn["start"], turn["seconds"])
        player.rest()
        reap()
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    player.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
