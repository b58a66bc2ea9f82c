"""Adaptive applications on a phone's screen, in real sandboxes."""

import asyncio
import io
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from PIL import Image

from dart_desktops.desktop.adaptive import FAMILIES
from dart_desktops.desktop.backend import DesktopBackend
from dart_desktops.desktop.environment import DesktopEnvironment
from dart_desktops.desktop.problem import PHONE, find
from dart_streams.actions import Click
from dart_streams.config import Config, Desktop, Env
from dart_streams.config.tasks import Task
from tests.environments import check_family, playing
from workers.env import conformance

pytestmark = [pytest.mark.usefixtures("desktops_of_normal_priority"), pytest.mark.asyncio(loop_scope="module")]
STAYS_S = 1.0


def task(family: str) -> Task:
    return Task(environment="desktop", page=family, seed=1, max_steps=4, split="train")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[DesktopBackend]:
    """A backend of one desktop, with the screen of a desktop, for which a phone's tasks are too large."""
    made = DesktopBackend(Config(env=Env(backend="desktop", slots=1, desktop=Desktop(call_timeout_s=300.0))))
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_oracle_solves_each_family_of_a_phone(backend, family):
    await check_family(backend, task(family))


@pytest.mark.parametrize("family", ["switch", "discard"])
async def test_a_phone_of_each_application_keeps_the_contract(backend, family):
    await conformance.check(backend, task(family))


async def check_window(environment: DesktopEnvironment) -> None:
    """Check that the application's window fills the screen, without a frame."""
    (window,) = [element for element in await environment._elements() if element.role == "frame"]
    assert window.box == (0, 0, *PHONE)


async def test_settings_fill_the_phones_screen(backend):
    async with playing(backend, task("switch")) as environment:
        await check_window(environment)


async def test_a_long_press_selects_once_for_an_id_and_the_screen_stays(backend):
    async with playing(backend, task("discard")) as environment:
        await check_window(environment)
        place = find(await environment._elements(), "table cell", "lakes.txt").click()
        press = Click(place.x, place.y, "right")
        selected = await environment.step(press, "hold")
        assert Image.open(io.BytesIO(selected.image)).size == PHONE
        assert "selected" in find(await environment._elements(), "table cell", "lakes.txt").states
        await asyncio.sleep(STAYS_S)
        assert (await environment.step(press, "hold")).image == selected.image
