"""Both ways of taking screens show the same pixels; a browser with only one of them gets that one."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from dart_streams.actions import Click
from dart_streams.config import Capture, tasks
from dart_streams.config.tasks import Task
from dart_streams.errors import ServiceUnavailable
from tests.environments import opened
from tests.integration.miniwob_backend import browser, pixels, task
from workers.env.backends.miniwob import browser as browser_module
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.backends.miniwob.browser import find_browser
from workers.env.backends.miniwob.capture import HEIGHT, WIDTH, BeginFrames
from workers.env.backends.miniwob.page import RESTARTABLE
from workers.env.environment import Screen

DEMONSTRATION = tasks.load(Path(__file__).parents[2] / "deploy/config/tasks.toml")
SPLITS = ("train", "heldout", "demonstration")
SEEDS = 2 if "DART_SLOW_TESTS" in os.environ else 1
"""Of each page; of the demonstration's pages as many more from each split."""
ROUNDED = {"choose-date-easy", "click-dialog-2", "click-tab"}
"""Pages of jQuery UI, whose widgets have antialiased corners. After an action these were painted once in one way,
several times in the other."""
DRAWN = {"identify-shape"}
"""Pages with a drawing, whose antialiased edges are painted again in part."""
REDRAWN = {"bisect-angle", "circle-center", "find-midpoint", "right-angle"}
"""Pages that draw a line or a point with each click: an edge of an area painted again crosses antialiased lines and
circles elsewhere in the one way than in the other. A line or a point too few differs by more than 100 of 255."""
TOLERANCE = dict.fromkeys(ROUNDED | DRAWN, (24, 1)) | dict.fromkeys(REDRAWN, (250, 64))
"""Pixels that may differ after an action, and by how much of 255."""
CONCURRENT = 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both() -> AsyncIterator[list[MiniwobBackend]]:
    """A backend for each way of taking screens."""
    async with (
        browser(isolation="problem", capture="begin-frame") as frames,
        browser(isolation="problem", capture="screenshot") as shots,
    ):
        yield [frames, shots]


def sample(name: str) -> list[Task]:
    """Return tasks of a page: seeds of its own, and the first of each split of the demonstration."""
    own = [task(name, seed) for seed in range(SEEDS)]
    families = [family for family in DEMONSTRATION.pages if family.page == name]
    return own + [chosen for family in families for split in SPLITS for chosen in family.tasks(split)[1 : 1 + SEEDS]]


async def play(backend: MiniwobBackend, chosen: Task) -> tuple[list[Screen], float]:
    """Click somewhere, then let the oracle play; return all screens and the reward."""
    rng = random.Random(chosen.task_id)
    async with opened(backend, chosen) as (page, first):
        screens = [first, await page.step(Click(rng.randrange(WIDTH), rng.randrange(50, HEIGHT)), "anywhere")]
        async for action in page.demonstrate(chosen):
            screens.append(await page.step(action, str(len(screens))))
            if screens[-1].done or len(screens) > 12:
                break
        return screens, await page.evaluate()


def check_same(name: str, number: int, frame: Screen, shot: Screen) -> None:
    """Fail where the screens after ``number`` actions differ by more than antialiased edges may after an action."""
    assert (frame.instruction, frame.done) == (shot.instruction, shot.done)
    difference = np.abs(pixels(frame).astype(int) - pixels(shot).astype(int)).max(axis=2)
    count, most = int((difference > 0).sum()), int(difference.max())
    pixels_allowed, difference_allowed = TOLERANCE.get(name, (0, 0)) if number else (0, 0)
    edges = count <= pixels_allowed and most <= difference_allowed
    assert count == 0 or edges, f"{name}, screen {number}: {count} pixels differ, by {most} of 255 at most"


@pytest.mark.parametrize("name", sorted(RESTARTABLE))
@pytest.mark.asyncio(loop_scope="module")
async def test_a_frame_for_each_screen_shows_what_a_screenshot_shows(both, name):
    """The same screens, instructions and rewards, in a document that is loaded and in one that is used again."""
    limit = asyncio.Semaphore(CONCURRENT)

    async def play_in_both(chosen: Task) -> int:
        async with limit:
            (frames, reward), (shots, other_reward) = await asyncio.gather(*(play(backend, chosen) for backend in both))
        assert (len(frames), reward) == (len(shots), other_reward)
        for number, (frame, shot) in enumerate(zip(frames, shots, strict=True)):
            check_same(name, number, frame, shot)
        return len(frames)

    chosen = sample(name)
    assert sum(await asyncio.gather(*map(play_in_both, chosen))) >= 2 * len(chosen)


async def first_screen(capture: Capture) -> tuple[str, Screen]:
    async with browser(capture=capture) as backend:
        page = await backend.open(task("click-test", 1))
        return backend.browsers[0].browser.capturing.name, await page.reset(task("click-test", 1))


@pytest.mark.parametrize("missing", BeginFrames.flags[1:])
async def test_without_one_of_its_flags_the_browser_draws_the_same(monkeypatch, missing):
    """Of the headless shell's flags one decides whether frames can be asked for; without it there are screenshots."""
    name, expected = await first_screen("auto")
    assert name == "begin-frame"
    monkeypatch.setattr(BeginFrames, "flags", tuple(flag for flag in BeginFrames.flags if flag != missing))
    needed = missing == "--run-all-compositor-stages-before-draw"
    assert await first_screen("auto") == ("screenshot" if needed else "begin-frame", expected)
    if needed:
        with pytest.raises(ServiceUnavailable, match="chromium-headless-shell"):
            await first_screen("begin-frame")


async def test_another_binary_is_given_screenshots(monkeypatch, tmp_path):
    """A browser that knows none of the flags, as a desktop's Chromium: here a program that drops them."""
    program = tmp_path / "other-chromium"
    known = "|".join(flag for flag in BeginFrames.flags if not flag.startswith("--window-size"))
    program.write_text(
        "#!/bin/bash\nkept=()\n"
        f'for flag in "$@"; do case "$flag" in {known}) ;; *) kept+=("$flag") ;; esac; done\n'
        f'exec {find_browser()} "${{kept[@]}}"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(browser_module, "PLACES", (str(program),))
    assert find_browser() == str(program)
    name, screen = await first_screen("auto")
    assert (name, screen.width, screen.height) == ("screenshot", WIDTH, HEIGHT)
