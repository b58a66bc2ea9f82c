"""The ``simulated`` backend: a colored box to click, with latencies from distributions and without a browser.

The instruction contains the box in pixels of the policy's image, so that a scripted engine can solve the task. On a
page ``steps-N`` the box needs N clicks, each of which changes its color; on any other page it needs one. A click beside
the box ends the episode with reward 0; other actions have no effect.

A ``[workload]`` replaces the latencies; on its pages ``work-N`` the box needs about N clicks. In an episode that must
fail, the instruction names a position beside the box, and the episode continues until the last click.
"""

import asyncio
import functools
import hashlib
import io
import random
from collections.abc import AsyncIterator
from typing import Literal

from PIL import Image, ImageDraw

from dart_streams.actions import Action, Click
from dart_streams.config import Config, Simulated
from dart_streams.config.tasks import Task
from dart_streams.config.workload import Course, Spread, Workload, draw_course, typical_steps
from dart_streams.screens import smart_resize
from workers.env.environment import Environment, EnvironmentBackend, EnvironmentFault, Screen, Size, rescale

SIZE: Size = Simulated.screen
BOX: Size = (36, 28)
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf")

Call = Literal["reset", "step", "evaluate"]


class SimulatedBackend(EnvironmentBackend):
    """Makes simulated environments; it needs no service."""

    def __init__(self, config: Config) -> None:
        self.config = config
        workload = config.workload
        self.rng = random.Random() if workload is None else random.Random(workload.seed)

    async def open(self, task: Task) -> "SimulatedEnvironment":
        """Return a fresh environment for any task."""
        policy = self.config.policy
        policy_size = smart_resize(*SIZE, policy.min_pixels, policy.max_pixels)
        return SimulatedEnvironment(self.config, policy_size, random.Random(self.rng.random()))


class SimulatedEnvironment(Environment):
    """One simulated episode."""

    def __init__(self, config: Config, policy_size: Size, rng: random.Random) -> None:
        self.settings = config.env.simulated
        self.workload = config.workload
        self.spreads = call_spreads(self.settings, self.workload)
        self.scale = self.workload.time_scale if self.workload else 1.0
        self.policy_size = policy_size
        self.rng = rng
        self.center: Size = (0, 0)
        self.course = Course(1, True, None)
        self.clicks = 0
        self.missed = False
        self.instruction = ""
        self._executed: set[str] = set()

    async def reset(self, task: Task) -> Screen:
        """Draw the box of this task."""
        self.course = self._course_of(task)
        self.clicks, self.missed = 0, False
        await self._simulate_call("reset", 0)
        self.center = box_center(task)
        seen = rescale(Click(*self.center), SIZE, self.policy_size)
        assert isinstance(seen, Click)
        x, y = (seen.x, seen.y) if self.course.success else opposite_place((seen.x, seen.y), self.policy_size)
        times = f" Click it {self.course.steps} times." if self.course.steps > 1 else ""
        self.instruction = f"Click the box at ({x},{y}).{times}"
        return self._screen()

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Execute an action, once per id."""
        await self._simulate_call("step", self.clicks + 1)
        if action_id not in self._executed:
            self._executed.add(action_id)
            if isinstance(action, Click) and action.button == "left":
                self._click(action.x, action.y)
        return self._screen(last)

    async def evaluate(self) -> float:
        """Return 1 if the box had its clicks and nothing else was clicked, else 0."""
        await self._simulate_call("evaluate", None)
        return float(self.clicks >= self.course.steps and not self.missed)

    async def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        """Click the box until the episode ends."""
        while not self._is_done():
            yield Click(*self.center)

    def _course_of(self, task: Task) -> Course:
        """Return the course of the episode, which depends on the policy alone without a workload."""
        typical = typical_steps(task.page)
        if self.workload is None and typical is not None:
            raise EnvironmentFault(f"the page {task.page} needs a [workload] in the configuration")
        if self.workload is None or typical is None:
            return Course(required_clicks(task.page), True, None)
        return draw_course(self.workload, task.task_id, typical, self.rng)

    def _click(self, x: int, y: int) -> None:
        inside = abs(x - self.center[0]) <= BOX[0] // 2 and abs(y - self.center[1]) <= BOX[1] // 2
        self.clicks += inside or self.workload is not None
        self.missed = self.missed or not inside

    def _is_done(self) -> bool:
        return self.clicks >= self.course.steps or (self.missed and self.workload is None)

    def _screen(self, last: bool = False) -> Screen:
        done = self._is_done()
        return Screen(
            image=None
            if (done or last) and not self.settings.last_screen
            else draw_picture(self.center, self.clicks % len(COLORS)),
            media_type="image/png",
            width=SIZE[0],
            height=SIZE[1],
            instruction=self.instruction,
            done=done,
        )

    async def _simulate_call(self, call: Call, number: int | None) -> None:
        """Sleep for a call's duration, hang until the time-out, or fail; ``number`` is its index in the course."""
        drawn = self.rng.random()
        if drawn < self.settings.hang_rate or (number is not None and number == self.course.hangs_at):
            await asyncio.sleep(self.settings.call_timeout_s)
            raise EnvironmentFault(f"simulated hang: no response within {self.settings.call_timeout_s:g} s")
        if drawn < self.settings.hang_rate + self.settings.fault_rate:
            raise EnvironmentFault("simulated fault")
        seconds = self.spreads[call].draw(self.rng) / self.scale
        if seconds > 0:
            await asyncio.sleep(min(seconds, self.settings.call_timeout_s))


def call_spreads(settings: Simulated, workload: Workload | None) -> dict[Call, Spread]:
    """Return the distribution of each call's duration in seconds, from the workload if there is one."""
    if workload is not None:
        return {"reset": workload.reset_s, "step": workload.settle_s, "evaluate": workload.evaluate_s}
    medians_ms: dict[Call, float] = {
        "reset": settings.reset_ms,
        "step": settings.step_ms,
        "evaluate": settings.evaluate_ms,
    }
    return {call: Spread(median=ms / 1000, sigma=settings.sigma) for call, ms in medians_ms.items()}


def opposite_place(place: Size, size: Size) -> Size:
    """Return the pixel at half of the image's ``size`` from ``place``."""
    return (place[0] + size[0] // 2) % size[0], (place[1] + size[1] // 2) % size[1]


def required_clicks(page: str) -> int:
    """Return N of a page named ``steps-N``, else 1."""
    name, _, number = page.rpartition("-")
    return max(1, int(number)) if name == "steps" and number.isdecimal() else 1


def box_center(task: Task) -> Size:
    """Return the center of a task's box, which its id determines."""
    digest = hashlib.sha256(task.task_id.encode()).digest()
    x, y = int.from_bytes(digest[:4]), int.from_bytes(digest[4:8])
    return BOX[0] // 2 + x % (SIZE[0] - BOX[0]), BOX[1] // 2 + y % (SIZE[1] - BOX[1])


@functools.lru_cache(maxsize=4096)
def draw_picture(center: Size, color: int) -> bytes:
    """Return the screen as a PNG, with the box in the n-th of :data:`COLORS`."""
    image = Image.new("RGB", SIZE, "white")
    left, top = center[0] - BOX[0] // 2, center[1] - BOX[1] // 2
    ImageDraw.Draw(image).rectangle((left, top, left + BOX[0], top + BOX[1]), fill=COLORS[color])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
