"""The action ``wait``: it looks at the screen until that changes, for a second at most, and is executed once."""

import asyncio
from typing import Any

import pytest

from examples.in_memory_run import PolicyFunction
from tests.unit.workers.env import episodes
from workers.env import episode_runner
from workers.env.backends.simulated import SimulatedBackend
from workers.env.environment import Screen

PAUSES = (0.001, 0.002, 0.003)


class LateScreen:
    """Counts the looks of a wait; another screen is there at the look ``late``."""

    def __init__(self, inner: Any, late: int) -> None:
        self.inner, self.late, self.looks = inner, late, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def step(self, action: Any, action_id: str, last: bool = False) -> Screen:
        self.looks.append(action_id)
        before = self.inner.clicks
        self.inner.clicks += len(self.looks) >= self.late
        screen = await self.inner.step(action, action_id, last)
        self.inner.clicks = before
        return screen


@pytest.mark.parametrize(("late", "steps", "looks"), [(1, 9, 1), (2, 9, 2), (9, 9, 3), (1, 1, 1)])
def test_a_wait_ends_with_another_screen(monkeypatch, late, steps, looks):
    shown: list[LateScreen] = []

    class Backend(SimulatedBackend):
        async def open(self, task: Any) -> Any:
            shown.append(LateScreen(await super().open(task), late))
            return shown[-1]

    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(episode_runner, "WAIT_S", PAUSES)
    monkeypatch.setattr(episode_runner.asyncio, "sleep", noted)
    config = episodes.simulated_config()
    answers = iter(["Action: wait()", "Action: finished(content='')"])
    policy = PolicyFunction(lambda _: next(answers), episodes.TRAINER)
    asyncio.run(episodes.play(config, policy, backend=Backend(config), max_steps=steps))
    assert len(shown[0].looks) == looks and len(set(shown[0].looks)) == 1
    waited = [pause for pause in pauses if pause]
    assert waited == ([sum(PAUSES)] if steps == 1 else list(PAUSES[:looks]))
