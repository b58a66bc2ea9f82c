"""A MiniWoB++ backend, players that need no policy, and differences of screens."""

import io
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from PIL import Image, ImageChops

from dart_streams.actions import Click, Drag, Hotkey, KeyDown, KeyUp, MouseDown, MouseUp, Move, Scroll, Type
from dart_streams.config import Capture, Config, Env, Isolation, Miniwob
from dart_streams.config.tasks import Task
from workers.env.backends.miniwob import context_pool, pooled_browser
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.backends.miniwob.page import MiniwobPage
from workers.env.environment import Screen


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seat is kept however late a busy machine lets it answer."""
    monkeypatch.setattr(pooled_browser, "OPEN_S", 120.0)
    monkeypatch.setattr(context_pool, "QUIET_S", 120.0)


@asynccontextmanager
async def browser(
    call_timeout_s: float = 60.0,
    isolation: Isolation = "document",
    slots: int = 16,
    last_screen: bool = True,
    capture: Capture = "auto",
    browsers: int = 1,
) -> AsyncIterator[MiniwobBackend]:
    """A backend with its browsers, whose calls may take long: tests run on machines that do other things."""
    own = Miniwob(
        call_timeout_s=call_timeout_s, isolation=isolation, last_screen=last_screen, capture=capture, browsers=browsers
    )
    backend = MiniwobBackend(Config(env=Env(miniwob=own, slots=slots)))
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


def task(page: str, seed: int) -> Task:
    return Task(environment="miniwob", page=page, seed=seed, max_steps=10, split="train")


async def play_oracle(page: MiniwobPage, chosen: Task) -> int:
    """Let the oracle play; return how many steps it took."""
    steps = 0
    async for action in page.demonstrate(chosen):
        steps += 1
        if (await page.step(action, str(steps))).done or steps > chosen.max_steps:
            break
    return steps


async def play_anything(page: MiniwobPage, rng: random.Random) -> None:
    """Do what a policy that knows nothing may do, and leave things behind as no policy can."""
    for number in range(8):
        x, y = rng.randrange(160), rng.randrange(50, 210)
        action = rng.choice(
            [
                Click(x, y),
                Click(x, y),
                Click(x, y, count=rng.choice((2, 3))),
                Click(x, y, rng.choice(("right", "middle"))),
                Move(x, y),
                MouseDown(x, y),
                MouseUp(x, y),
                KeyDown(rng.choice(("shift", "ctrl", "alt", "a"))),
                KeyUp("ctrl"),
                Type("some text"),
                Scroll(x, y, "down"),
                Drag(x, y, rng.randrange(160), rng.randrange(50, 210)),
                Hotkey(("ctrl", "a")),
                Hotkey(("tab",)),
            ]
        )
        if (await page.step(action, f"any-{number}")).done:
            break
    await page.evaluate_script(
        "localStorage.setItem('left', 'behind'); sessionStorage.setItem('left', 'behind'); window.name = 'left';"
        " window.left = 'behind'; history.pushState({}, '', '#left');"
        " setTimeout(() => { window.late = 'behind'; }, 1); 0"
    )


def largest_difference(one: Screen, other: Screen) -> int:
    """Return by how much two screens differ at most, in one channel of a pixel (0 to 255)."""
    one_image, other_image = (Image.open(io.BytesIO(screen.image)).convert("RGB") for screen in (one, other))
    return max(most for _, most in ImageChops.difference(one_image, other_image).getextrema())


def where_different(one: Screen, other: Screen) -> str:
    """Say which part of two screens differs, and by how much."""
    if one.image == other.image:
        return "not in their pixels"
    images = [Image.open(io.BytesIO(screen.image)).convert("RGB") for screen in (one, other)]
    return f"in {ImageChops.difference(*images).getbbox()}, by {largest_difference(one, other)} of 255 at most"


def pixels(screen: Screen) -> np.ndarray:
    """Return a screen's pixels, height x width x 3."""
    return np.asarray(Image.open(io.BytesIO(screen.image)).convert("RGB"))
