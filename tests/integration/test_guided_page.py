"""Orders with recorded actions on a real page, of which a demonstration was recorded before."""

import pytest

from dart_streams.actions import Click, Move, format
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from dart_streams.episodes.trajectory_summary import summarize
from examples.in_memory_run import PolicyFunction
from tests import events
from tests.integration.miniwob_backend import browser
from tests.unit.workers.env.episodes import TRAINER, runner_of
from tests.unit.workers.env.test_guided_episodes import StoredLog
from topics.observations import Observation
from topics.rollout_orders import Guide

TASK = Task(environment="miniwob", page="form-sequence-2", seed=3, max_steps=10, split="train")
BOUND = 3


class Page:
    """Episodes of one task in a browser, with the demonstration that was played first."""

    def __init__(self, backend) -> None:
        self.backend = backend
        self.log = StoredLog()
        self.asked = 0

    async def play(self, answer, **fields) -> list[Observation]:
        def policy(request) -> str:
            self.asked += 1
            return answer(request.step)

        self.asked, before = 0, set(self.log.observations)
        runner = runner_of(parse({}), self.backend, self.log, PolicyFunction(policy, TRAINER))
        await runner.run(events.rollout_order(task_id=TASK.task_id, max_steps=10, **fields), TASK, lambda _: None)
        [trajectory_id] = set(self.log.observations) - before
        return self.log.observations[trajectory_id]

    async def guided(self, answer, source: str, **fields) -> list[Observation]:
        return await self.play(answer, guide=Guide(trajectory_id=source, bound=BOUND, **fields))


@pytest.mark.timeout(300)
async def test_a_demonstrated_prefix_and_patches_on_a_page():
    async with browser(slots=1) as backend:
        page = Page(backend)
        shown = await page.play(lambda step: "", purpose="demonstration")
        source, texts = shown[0].trajectory_id, [observation.taken.text for observation in shown[1:]]
        assert shown[-1].end.kind == "success"
        assert len(texts) >= 4, "the page takes several actions"

        rest = await page.guided(texts.__getitem__, source, mode="prefix", share=0.5)
        prefix = len(texts) // 2
        assert (rest[-1].end.kind, rest[-1].end.reward) == ("success", 1.0)
        assert summarize(rest).recorded_steps == list(range(prefix))
        assert page.asked == len(texts) - prefix

        inside = await page.guided(texts.__getitem__, source, mode="prefix", share=1.0, single=True)
        outside = await page.guided(lambda step: format(Click(0, 0)), source, mode="prefix", share=1.0, single=True)
        assert [observations[-1].end.reward for observations in (inside, outside)] == [1.0, 0.0]
        assert [summarize(each).recorded_steps for each in (inside, outside)] == [list(range(len(texts) - 1))] * 2
        assert inside[-1].screenshot == inside[-2].screenshot

        left = {1, 3}
        patched = await page.guided(
            lambda step: format(Move(0, 0)) if step in left else texts[step], source, mode="patches", patches=2
        )
        assert (patched[-1].end.kind, summarize(patched).recorded_steps) == ("success", sorted(left))
        ended = await page.guided(lambda step: format(Move(0, 0)), source, mode="patches", patches=2)
        assert (ended[-1].end.kind, summarize(ended).recorded_steps, summarize(ended).steps) == ("failure", [0, 1], 3)
