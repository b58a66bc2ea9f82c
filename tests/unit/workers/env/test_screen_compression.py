"""Compressed screens in whole episodes: what is stored is what the policy is asked about, and clicks still hit."""

import asyncio
import hashlib
import re
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dart_streams import pictures
from dart_streams.actions import Action, Click
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.screens import smart_resize
from examples.in_memory_run import ObservationLog, PolicyFunction
from tests.unit.test_pictures import noise, saved
from tests.unit.workers.env import episodes
from tests.unit.workers.env.episodes import TRAINER, simulated_config
from topics.action_requests import ActionRequest
from topics.values import BlobRef
from workers.env.backends.simulated import SIZE, SimulatedBackend
from workers.env.environment import EnvironmentFault, Screen
from workers.env.screen_compression import compress_screen

BOUNDS = (3136, 1_003_520)
LARGE = (1920, 1080)
TARGET = (1700, 900)
"""A place of the large screen."""


class KeepingLog(ObservationLog):
    """Keeps the stored screenshots."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, bytes] = {}

    async def put_blob(self, data: bytes, media_type: str, width: int, height: int) -> BlobRef:
        self.stored[hashlib.sha256(data).hexdigest()] = data
        return await super().put_blob(data, media_type, width, height)


class LargeScreen:
    """An environment with a large screen, whose episode ends with a click."""

    def __init__(self) -> None:
        self.clicks: list[Action] = []

    async def reset(self, task: Task) -> Screen:
        return self.screen()

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        self.clicks.append(action)
        return self.screen(done=True)

    async def evaluate(self) -> float:
        return 1.0

    async def close(self) -> None:
        pass

    def screen(self, *, done: bool = False) -> Screen:
        image, (width, height) = saved(noise(size=(96, 54)).resize(LARGE)), LARGE
        return Screen(image=image, media_type="image/png", width=width, height=height, instruction="", done=done)


class LargeBackend(SimulatedBackend):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.environment = LargeScreen()

    async def open(self, task: Task) -> Any:
        return self.environment


def played(config: Config, backend: Any, policy: Any) -> tuple[KeepingLog, list[Any], list[ActionRequest]]:
    log, asked = KeepingLog(), []

    def answer(request: ActionRequest) -> str:
        asked.append(request)
        return policy(request)

    run = episodes.play(config, PolicyFunction(answer, TRAINER), log=log, backend=backend, page="box")
    (observations,) = asyncio.run(run)
    return log, observations, asked


def with_format(kind: str) -> Config:
    config = simulated_config()
    shots = msgspec.structs.replace(config.env.screenshots, format=kind)
    return msgspec.structs.replace(config, env=msgspec.structs.replace(config.env, screenshots=shots))


def place_on(seen: tuple[int, int], place: tuple[int, int], own: tuple[int, int]) -> str:
    """Return a click on the policy's image at a place of the environment's screen."""
    x, y = ((2 * at + 1) * to // (2 * of) for at, to, of in zip(place, seen, own, strict=True))
    return f"Action: click(start_box='({x},{y})')"


def box_click(request: ActionRequest) -> str:
    (place,) = re.findall(r"box at \((\d+),(\d+)\)", " ".join(turn.text or "" for turn in request.turns))
    return place_on(smart_resize(*SIZE, *BOUNDS), (int(place[0]), int(place[1])), SIZE)


@pytest.mark.parametrize("kind", ["webp", "jpeg"])
def test_a_large_screen_is_stored_at_the_policys_size_and_still_hit(kind: str):
    config, size = with_format(kind), smart_resize(*LARGE, *BOUNDS)
    backend = LargeBackend(config)
    log, observations, asked = played(config, backend, lambda _: place_on(size, TARGET, LARGE))
    (click,) = backend.environment.clicks
    assert isinstance(click, Click)
    assert abs(click.x - TARGET[0]) <= 2
    assert abs(click.y - TARGET[1]) <= 2
    for observation in observations:
        ref = observation.screenshot
        assert (ref.media_type, ref.width, ref.height) == (f"image/{kind}", *size)
        assert pictures.facts_of(log.stored[ref.sha256]) == (ref.media_type, ref.width, ref.height)
        assert len(log.stored[ref.sha256]) == ref.size
    shown = [turn.image for request in asked for turn in request.turns if turn.image is not None]
    assert shown == [observations[0].screenshot], "the request names the stored picture"


def test_a_small_screen_keeps_its_size():
    _, observations, _ = played(with_format("webp"), None, box_click)
    assert observations[-1].end.kind == "success"
    for observation in observations:
        ref = observation.screenshot
        assert (ref.media_type, ref.width, ref.height) == ("image/webp", *SIZE)


def test_without_a_format_the_environments_bytes_are_stored():
    log, observations, _ = played(with_format(""), None, box_click)
    stored = [log.stored[observation.screenshot.sha256] for observation in observations]
    assert {pictures.facts_of(data).media_type for data in stored} == {"image/png"}


async def test_a_picture_that_breaks_off_is_a_fault_of_the_environment():
    screen = Screen(image=saved(noise())[:-300], media_type="image/png", width=40, height=30, instruction="")
    with pytest.raises(EnvironmentFault, match="no screenshot"):
        await compress_screen(screen, with_format("webp"))
    assert await compress_screen(screen, with_format("")) is screen


@given(st.integers(28, 4000), st.integers(28, 4000))
def test_the_policys_size_of_a_scaled_picture_is_that_of_the_screen(width: int, height: int):
    """So requests and coordinates are the same with and without compression."""
    assume(max(width, height) <= pictures.MAX_ASPECT * min(width, height))
    size = smart_resize(width, height, *BOUNDS)
    assert smart_resize(*size, *BOUNDS) == size
