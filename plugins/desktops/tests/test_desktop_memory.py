"""The server inside a sandbox does not grow with the sessions that have ended."""

import itertools

import psutil
import pytest

from dart_desktops.desktop.backend import DesktopBackend
from dart_desktops.desktop.environment import DesktopEnvironment
from dart_desktops.desktop.problem import LARGE
from dart_streams.config import Config, Desktop, Env
from plugins.desktops.tests.test_desktop import task
from tests.environments import playing
from workers.env import conformance

EPISODES = 10
PIXELS_MB = LARGE[0] * LARGE[1] * 4 / 1e6
"""Of one screen, which the server keeps while it is shown."""

pytestmark = pytest.mark.usefixtures("desktops_of_normal_priority")


def server_of(environment: DesktopEnvironment) -> psutil.Process:
    """Return the first process inside a sandbox."""
    assert environment.sandbox.process is not None
    return psutil.Process(environment.sandbox.process.pid).children()[0]


async def test_screens_of_sessions_that_ended_are_not_kept():
    """Episodes are played on large screens: a screen is a third of the server's memory, and steps may keep it too."""
    width, height = LARGE
    desktop = Desktop(width=width, height=height, spares=0, call_timeout_s=300.0)
    backend = DesktopBackend(Config(env=Env(backend="desktop", slots=1, desktop=desktop)))
    used_mb: dict[int, list[float]] = {}
    families = itertools.cycle(("answer", "edit"))
    try:
        for number, family in zip(range(EPISODES), families, strict=False):
            async with playing(backend, task(family, number)) as environment:
                assert await conformance.solve(environment, task(family, number))
                assert await environment.evaluate() == 1
                server = server_of(environment)
                used = server.memory_info()  # Without pages of files; all users may read it, unlike mappings.
                used_mb.setdefault(server.pid, []).append(float(used.rss - used.shared) / 1e6)
    finally:
        await backend.stop()
    [of_one] = used_mb.values()
    assert of_one[0] > PIXELS_MB, "nothing is measured"
    assert max(of_one) - of_one[0] < PIXELS_MB / 2, of_one
