"""An observation waits for others to go with only while its episode waits for the policy, and no longer."""

import asyncio
from typing import Any, cast

from dart_streams.config import parse
from dart_streams.config.tasks import Task
from dart_streams.curation.in_memory import CountingTrainer
from examples.in_memory_run import ObservationLog, PolicyFunction
from tests import events
from topics import Topic
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.values import Purpose
from workers.env.backends.simulated import SimulatedBackend
from workers.env.episode_runner import EpisodeRunner

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
    quick = {"reset_ms": 0, "step_ms": 0, "evaluate_ms": 0}
    config = parse({"env": {"backend": "simulated", "simulated": quick}})
    log, trainer = PatientLog(), CountingTrainer(config.trainer.groups_per_step)
    policy = SlowPolicy(lambda request: "Action: click(point='<point>1 1</point>')", trainer)
    runner = EpisodeRunner(config, "env-0", SimulatedBackend(config), cast(Any, log), cast(Any, log), cast(Any, policy))
    task = Task(environment="simulated", page="steps-3", seed=3, max_steps=3, split="train")
    order = events.rollout_order(task_id=task.task_id, purpose=purpose)
    async with asyncio.timeout(BOUND_S):
        await runner.run(order, task, lambda _: None)
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
