"""Proposed pages in a real browser: each broken one ends its check with a reason, and no other episode notices."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from benchmarks.curation_world import task_set
from dart_streams.config import Config, parse
from dart_streams.config.tasks import TaskSet
from dart_streams.curation import proposals
from dart_streams.curation.proposals import ProposalSettings, ProposalsState
from dart_streams.curation.reducer import Decision, InputRecord
from dart_streams.episodes.trajectory_summary import summarize
from examples import make_tasks
from examples.in_memory_run import ObservationLog, PolicyFunction
from tests.unit.workers.env.episodes import TRAINER, runner_of
from topics.rollout_orders import RolloutOrder
from topics.task_verdicts import TaskVerdict
from topics.tasks import ProposedTask
from topics.trajectories import Trajectory
from workers.env.backends.miniwob import browser
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.proposed_tasks import ProposedTasks

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG = parse(
    {"env": {"slots": 4, "episode_timeout_s": 120, "miniwob": {"call_timeout_s": 60}}, "tasks": {"proposals": True}}
)


def made(count: int) -> list[ProposedTask]:
    """Return the tasks that the example makes."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        make_tasks.main(count)
    return [msgspec.json.decode(line, type=ProposedTask) for line in printed.getvalue().splitlines()]


GOOD = made(1)[0].document
BROKEN = {
    "always-1": ("evaluate: () => reward", "evaluate: () => 1", "reward 0: the start is worth 1, not 0"),
    "never-1": ("label === wanted ? 1 : 0", "0", "its check ended with reward 0"),
    "half": ("label === wanted ? 1 : 0", "0.5", "its check ended with reward 0.5"),
    "nan": ("label === wanted ? 1 : 0", "NaN", "returned NaN: it must return a number"),
    "script-error": ("let reward = null", "let reward = missing", "the page defines no global `task`"),
    "evaluate-throws": ("evaluate: () => reward", "evaluate() { throw Error('no checker'); }", "no checker"),
    "no-oracle": ("demonstrate:", "unused:", r"has no task.demonstrate()"),
    "oracle-throws": ("demonstrate: ()", "demonstrate: () => { throw Error('lost'); }, unused: ()", "lost"),
    "oracle-stays": ("=== wanted),", "=== wanted) && 'x',", "its check ended with reward 0"),
    "no-instruction": ("return `Click ${wanted}.`", "return ''", "it must return the instruction"),
    "loops": ("reset(seed) {", "reset(seed) { for (;;);", "checks ended as env_error"),
    "loops-in-checker": ("evaluate: () => reward", "evaluate() { for (;;); }", "checks ended as env_error"),
    "goes-away": ("reset(seed) {", "reset(seed) { location.href = 'about:blank';", ""),
}
"""Name: what is replaced in a good page, by what, and what the reason says."""


def broken(name: str) -> ProposedTask:
    before, after, _ = BROKEN[name]
    assert before in GOOD
    return ProposedTask(task_id=f"miniwob/{name}#0", max_steps=3, maker="test", document=GOOD.replace(before, after, 1))


class Checker:
    """The proposals agent, and env worker's own runner that plays its checks in a browser."""

    def __init__(self, config: Config, backend: MiniwobBackend, folder: Path, tasks: TaskSet) -> None:
        self.settings = ProposalSettings.of(config, tasks)._replace(attempts=2)  # Each may wait for a time-out.
        self.state = ProposalsState()
        self.read = {"tasks": 0, "trajectories": 0}
        self.log = ObservationLog()
        self.runner = runner_of(config, backend, self.log, PolicyFunction(lambda _: pytest.fail("asked"), TRAINER))
        self.proposed = ProposedTasks(cast(Any, SimpleNamespace()), folder)
        self.verdicts: dict[str, TaskVerdict] = {}

    async def propose(self, task: ProposedTask) -> None:
        self.proposed.add(task)
        await self.apply("tasks", task)

    async def apply(self, topic: str, event: Any) -> None:
        self.read[topic] += 1
        record = InputRecord(topic, 0, self.read[topic], event)
        self.state, effects = proposals.apply(self.state, record, self.settings)
        for decision in [effect for effect in effects if isinstance(effect, Decision)]:
            if isinstance(decision.event, RolloutOrder):
                await self.apply("trajectories", await self.play(decision.event))
            else:
                self.verdicts[decision.event.task_id] = decision.event

    async def play(self, order: RolloutOrder) -> Trajectory:
        await self.runner.run(order, await self.proposed.find(order.task_id), lambda _: None)
        [seen] = [seen for seen in self.log.observations.values() if seen[0].order.order_id == order.order_id]
        return summarize(seen)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[MiniwobBackend]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(browser, "lower_priority", lambda pid: None)
        made = MiniwobBackend(CONFIG)
        await made.start()
        yield made
        await made.stop()


@pytest.fixture
def checker(backend: MiniwobBackend, tmp_path: Path) -> Checker:
    return Checker(CONFIG, backend, tmp_path, task_set(1))


async def test_the_pages_of_the_example_are_accepted(checker: Checker):
    for task in made(3):
        await checker.propose(task)
    assert {verdict.accepted for verdict in checker.verdicts.values()} == {True}
    assert len(checker.verdicts) == 3


async def test_a_known_page_is_checked_by_its_oracle_or_a_given_solution(checker: Checker):
    known = ProposedTask(task_id="miniwob/click-test#900", max_steps=3, maker="seeds")
    await checker.propose(known)
    await checker.propose(ProposedTask(task_id="miniwob/no-such-page#1", max_steps=3, maker="seeds"))
    given = msgspec.structs.replace(known, task_id="miniwob/click-test#901", solution=["Action: wait()"])
    await checker.propose(given)
    kinds = {verdict.task_id: (verdict.accepted, verdict.reason) for verdict in checker.verdicts.values()}
    assert kinds["miniwob/click-test#900"] == (True, "")
    assert kinds["miniwob/click-test#901"] == (False, "its check ended with reward 0: step limit")
    assert not kinds["miniwob/no-such-page#1"][0]
    assert "does not exist" in kinds["miniwob/no-such-page#1"][1]


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_page_is_refused_while_others_play_on(backend, checker: Checker, monkeypatch, name: str):
    if name.startswith("loops"):
        monkeypatch.setattr(backend.browsers[0].browser.devtools, "timeout_s", 8.0)
    good = msgspec.structs.replace(made(2)[1], task_id="miniwob/beside#0")
    await asyncio.gather(checker.propose(broken(name)), checker.propose(good))
    verdict = checker.verdicts[f"miniwob/{name}#0"]
    assert not verdict.accepted
    assert verdict.reason and BROKEN[name][2] in verdict.reason
    assert checker.verdicts["miniwob/beside#0"].accepted
