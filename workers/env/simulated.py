"""The ``simulated`` environment: a coloured box to click on, latencies from distributions, no browser.

The instruction states the box in pixels of the policy's image, so that a scripted engine can solve it from the text.
On a page named ``steps-N`` the box wants N clicks and changes its colour at each; on any other page one. A click
beside the box ends the episode with reward 0; other actions change nothing.
"""

import asyncio
import hashlib
import io
import math
import random
from collections.abc import AsyncIterator

from PIL import Image, ImageDraw

from dart_streams.actions import Action, Click, DoubleClick
from dart_streams.config import Config, Env
from dart_streams.screens import smart_resize
from dart_streams.tasks import Task
from workers.env.environment import EnvironmentFault, Screen
from workers.env.scaling import Size, rescale

SIZE: Size = (160, 210)
BOX: Size = (36, 28)
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf")


class SimulatedBackend:
    """Makes simulated environments; needs nothing."""

    def __init__(self, config: Config) -> None:
        self.config = config

    async def start(self) -> None:
        """There is nothing to start."""

    async def open(self, task: Task) -> "SimulatedEnvironment":
        """Return a fresh environment; any will do for any task."""
        policy = self.config.policy
        policy_size = smart_resize(*SIZE, policy.min_pixels, policy.max_pixels)
        return SimulatedEnvironment(self.config.env, policy_size)

    async def stop(self) -> None:
        """There is nothing to stop."""


class SimulatedEnvironment:
    """One episode."""

    def __init__(self, config: Env, policy_size: Size) -> None:
        self.settings = config.simulated
        self.policy_size = policy_size
        self.call_timeout_s = config.call_timeout_s
        self.last_screen = config.last_screen
        self.chance = random.Random()
        self.centre: Size = (0, 0)
        self.wanted = 1
        self.hits = 0
        self.missed = False
        self.instruction = ""
        self._done_ids: set[str] = set()

    async def reset(self, task: Task) -> Screen:
        """Draw the box of this task."""
        await self._take_time(self.settings.reset_ms)
        self.centre = box_centre(task)
        self.wanted = clicks_wanted(task.page)
        self.hits, self.missed = 0, False
        x, y = self._centre_for_policy()
        times = f" Click it {self.wanted} times." if self.wanted > 1 else ""
        self.instruction = f"Click the box at ({x},{y}).{times}"
        return self._screen()

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Execute an action, once per id."""
        await self._take_time(self.settings.step_ms)
        if action_id not in self._done_ids:
            self._done_ids.add(action_id)
            if isinstance(action, Click | DoubleClick):
                self._click(action.x, action.y)
        return self._screen(last)

    async def evaluate(self) -> float:
        """Return 1 when the box has had its clicks and nothing else was clicked."""
        await self._take_time(self.settings.evaluate_ms)
        return float(self.hits >= self.wanted and not self.missed)

    async def close(self) -> None:
        """There is nothing to free."""

    async def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        """Click the box until it has had enough."""
        while self.hits < self.wanted and not self.missed:
            yield Click(*self.centre)

    def _centre_for_policy(self) -> Size:
        moved = rescale(Click(*self.centre), SIZE, self.policy_size)
        assert isinstance(moved, Click)
        return moved.x, moved.y

    def _click(self, x: int, y: int) -> None:
        inside = abs(x - self.centre[0]) <= BOX[0] // 2 and abs(y - self.centre[1]) <= BOX[1] // 2
        self.hits += inside
        self.missed = self.missed or not inside

    def _screen(self, last: bool = False) -> Screen:
        done = self.missed or self.hits >= self.wanted
        return Screen(
            image=None if (done or last) and not self.last_screen else picture(self.centre, self.hits),
            media_type="image/png",
            width=SIZE[0],
            height=SIZE[1],
            instruction=self.instruction,
            done=done,
        )

    async def _take_time(self, median_ms: float) -> None:
        """Take a log-normal time; sometimes hang until the call's bound, sometimes fail."""
        luck = self.chance.random()
        if luck < self.settings.hang_rate:
            await asyncio.sleep(self.call_timeout_s)
            raise EnvironmentFault(f"simulated hang: no answer within {self.call_timeout_s:g} s")
        if luck < self.settings.hang_rate + self.settings.fault_rate:
            raise EnvironmentFault("simulated fault")
        if median_ms > 0:
            seconds = self.chance.lognormvariate(math.log(median_ms / 1000), self.settings.sigma)
            await asyncio.sleep(min(seconds, self.call_timeout_s))


def clicks_wanted(page: str) -> int:
    """Return N of a page named ``steps-N``, else 1."""
    name, _, number = page.rpartition("-")
    return max(1, int(number)) if name == "steps" and number.isdecimal() else 1


def box_centre(task: Task) -> Size:
    """Return where this task's box is: a matter of its id alone."""
    digest = hashlib.sha256(task.task_id.encode()).digest()
    x, y = int.from_bytes(digest[:4]), int.from_bytes(digest[4:8])
    return BOX[0] // 2 + x % (SIZE[0] - BOX[0]), BOX[1] // 2 + y % (SIZE[1] - BOX[1])


def picture(centre: Size, hits: int) -> bytes:
    """Return the screen as PNG: the box, in the colour of its clicks so far."""
    image = Image.new("RGB", SIZE, "white")
    left, top = centre[0] - BOX[0] // 2, centre[1] - BOX[1] // 2
    ImageDraw.Draw(image).rectangle((left, top, left + BOX[0], top + BOX[1]), fill=COLOURS[hits % len(COLOURS)])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
