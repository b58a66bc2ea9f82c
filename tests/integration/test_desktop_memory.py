"""What the server inside a sandbox keeps of sessions that have ended."""

import itertools

import pytest

from benchmarks.desktop_leaks import own_mb, server_of
from dart_streams.config import Config, Desktop, Env
from tests.integration.test_desktop import task
from workers.env import contract
from workers.env.backends.desktop.backend import DesktopBackend
from workers.env.backends.desktop.problem import LARGE

EPISODES = 10
PIXELS_MB = LARGE[0] * LARGE[1] * 4 / 1e6
"""Of one screen, which the server keeps while it is shown."""

pytestmark = pytest.mark.usefixtures("desktops_of_normal_priority")


async def test_screens_of_sessions_that_ended_are_not_kept():
    """Episodes are played on large screens: a screen is a third of the server's memory, and steps may keep it too."""
    width, height = LARGE
    desktop = Desktop(width=width, height=height, spares=0)
    backend = DesktopBackend(Config(env=Env(backend="desktop", slots=1, desktop=desktop)))
    used_mb: dict[int, list[float]] = {}
    families = itertools.cycle(("answer", "edit"))
    try:
        for number, family in zip(range(EPISODES), families, strict=False):
            environment = await backend.open(task(family, number))
            await environment.reset(task(family, number))
            assert await contract.solve(environment, task(family, number))
            assert await environment.evaluate() == 1
            server = server_of(environment)
            assert server is not None
            used_mb.setdefault(server.pid, []).append(own_mb(server))
            await environment.close()
    finally:
        await backend.stop()
    [of_one] = used_mb.values()
    assert of_one[0] > PIXELS_MB, "nothing is measured"
    assert max(of_one) - of_one[0] < PIXELS_MB / 2, of_one
