"""An observation waits for others to go with only while its episode waits for the policy, and no longer."""

import asyncio
from typing import Any

from examples.in_memory_run import ObservationLog, PolicyFunction
from tests.unit.workers.env import episodes
from tests.unit.workers.env.episodes import TRAINER, simulated_config
from topics import Topic
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.values import Purpose

BOUND_S = 60.0


class PatientLog(ObservationLog):
    """Publishes what may wait only when it is hurried; ``waited`` has the steps that did."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[int] = []
        self.hurried = asyncio.Event()

    async def publish(self, topic: Topic, event: Any, **options: Any) -> None:
        if options["patience_s"]:
            self.waited.append(event.step)
            await self.hurried.wait()
        await super().publish(topic, event)

    def hurry(self) -> None:
        self.hurried.set()
        self.hurried = asyncio.Event()


class SlowPolicy(PolicyFunction):
    """Answers some turns of the event loop later, so that a screenshot is durable by then."""

    async def request(self, request: ActionRequest, timeout_s: float) -> ActionResponse:
        for _ in range(20):
            await asyncio.sleep(0)
        return await super().request(request, timeout_s)


async def play(purpose: Purpose) -> PatientLog:
    log, policy = PatientLog(), SlowPolicy(lambda request: "Action: click(point='<point>1 1</point>')", TRAINER)
    async with asyncio.timeout(BOUND_S):
        await episodes.play(simulated_config(), policy, purpose=purpose, log=log)
    return log


async def test_an_answer_ends_the_wait_and_the_last_observation_goes_at_once():
    log = await play("train")
    (observations,) = log.observations.values()
    assert [one.step for one in observations] == list(range(len(observations)))
    assert log.waited == [one.step for one in observations[:-1]]
    assert observations[-1].end is not None


async def test_a_demonstration_waits_for_nobody():
    log = await play("demonstration")
    (observations,) = log.observations.values()
    assert (log.waited, observations[-1].end.kind) == ([], "success")
