"""Checks of proposed tasks: how the env worker plays one, and where it finds the task."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.curation_world import task_set
from dart_streams import actions
from dart_streams.actions import Click
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.errors import ConfigError
from examples.in_memory_run import ObservationLog, PolicyFunction
from tests import events
from tests.unit.workers.env.episodes import TRAINER, runner_of, simulated_config
from topics.tasks import ProposedTask
from topics.trajectories import Trajectory
from workers.env import proposed_tasks
from workers.env.backends.simulated import SimulatedBackend, box_center
from workers.env.proposed_tasks import ProposedTasks, find_task

TASK = Task(environment="simulated", page="steps-3", seed=3, max_steps=6, split="train")


class Solved(SimulatedBackend):
    """Opens environments whose evaluator always returns 1."""

    async def open(self, task: Task) -> Any:
        environment = await super().open(task)

        async def evaluate() -> float:
            return 1.0

        environment.evaluate = evaluate
        return environment


async def play_check(config: Config, backend: SimulatedBackend, plan: list[str], page: str = "steps-3") -> Trajectory:
    """Play a check without a policy."""
    log = ObservationLog()
    task = Task(environment="simulated", page=page, seed=3, max_steps=6, split="train")
    order = events.rollout_order(task_id=task.task_id, purpose="check", plan=plan, max_steps=6)
    policy = PolicyFunction(lambda _: pytest.fail("the policy was asked"), TRAINER)
    await runner_of(config, backend, log, policy).run(order, task, lambda _: None)
    [observations] = log.observations.values()
    return summarize(observations)


async def test_a_check_is_played_by_the_oracle_without_a_policy():
    config = simulated_config()
    found = await play_check(config, SimulatedBackend(config), [])
    assert (found.purpose, found.outcome, found.reward, found.steps, found.reason) == ("check", "success", 1.0, 3, "")


async def test_a_check_plays_the_recorded_solution_and_is_evaluated_after_it():
    config = simulated_config()
    box = Task(environment="simulated", page="box", seed=3, max_steps=6, split="train")
    solution = [actions.format(Click(*box_center(box)))]
    assert (await play_check(config, SimulatedBackend(config), solution, "box")).outcome == "success"
    found = await play_check(config, SimulatedBackend(config), ["Action: wait()"], "box")
    assert (found.outcome, found.reward, found.steps, found.reason) == ("truncated", 0.0, 1, "step limit")


async def test_a_check_whose_start_has_a_reward_ends_there():
    config = simulated_config()
    found = await play_check(config, Solved(config), [])
    assert (found.outcome, found.reward, found.steps) == ("failure", 0.0, 0)
    assert found.reason == "the start is worth 1, not 0"


def proposed(task_id: str = "miniwob/made#3", document: str = "<p>é", **fields: Any) -> ProposedTask:
    return ProposedTask(task_id=task_id, max_steps=5, maker="test", document=document, **fields)


def proposals_of(folder: Path) -> ProposedTasks:
    return ProposedTasks(cast(Any, None), folder)


def pages_in(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in folder.iterdir()}


async def test_a_proposed_page_is_a_file_and_the_first_of_an_id_counts(tmp_path: Path):
    found = proposals_of(tmp_path)
    found.add(proposed())
    found.add(proposed(document="another"))
    found.add(proposed("miniwob/made#4"))
    found.add(proposed("simulated/box#900", document=""))
    task = await found.find("miniwob/made#3")
    assert (task.environment, task.page, task.seed, task.max_steps) == ("miniwob", "made", 3, 5)
    assert pages_in(tmp_path) == {task.file: "<p>é"}
    assert (await found.find("simulated/box#900")).file == ""
    assert (await find_task(task_set(1), found, "simulated/grid#0")).page == "grid"


def test_pages_of_proposals_are_written_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proposed_tasks, "MOST_PAGES", 10)
    found = proposals_of(tmp_path)
    for number, document in enumerate(("<p>one", "<p>one", "<p>two", "<p>")):
        found.add(proposed(f"miniwob/made#{number}", document))
    assert [*found.tasks] == ["miniwob/made#0", "miniwob/made#1", "miniwob/made#3"]
    assert sorted(pages_in(tmp_path).values()) == ["<p>", "<p>one"]


async def test_an_order_waits_for_its_proposal_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = proposals_of(tmp_path)
    waiting = asyncio.create_task(found.find("miniwob/made#3"))
    await asyncio.sleep(0)
    found.add(proposed("miniwob/made#4"))
    await asyncio.sleep(0)
    assert not waiting.done()
    found.add(proposed())
    assert (await waiting).task_id == "miniwob/made#3"
    monkeypatch.setattr(proposed_tasks, "WAIT_S", 0.01)
    with pytest.raises(ConfigError, match="neither task set nor proposals have it"):
        await found.find("miniwob/gone#3")
    with pytest.raises(ConfigError, match="the task set does not have it"):
        await find_task(task_set(1), None, "miniwob/made#3")


@pytest.mark.parametrize("task_id", ["made", "miniwob/made", "miniwob/made#x", "miniwob#3", "miniwob/made#²", "#"])
def test_an_id_that_names_no_task_is_left_out(tmp_path: Path, task_id: str):
    found = proposals_of(tmp_path)
    found.add(proposed(task_id))
    assert not found.tasks
