"""The neighbours' recipes as shipped: each file runs the circle in memory, and what it is named for happens there."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.curation_world import Odds, SimulatedCircle
from dart_streams import tasks
from dart_streams.config import Config, load
from topics.curated import CuratedGroup
from topics.rollout_orders import RolloutOrder
from trainer.data.batch_builder import TokenBudget
from trainer.learning.sft_phase import SuccessMemory, is_due, sft_groups

FOLDER = Path(__file__).parents[3] / "deploy/config/recipes"
RECIPES = sorted(FOLDER.glob("*.toml"))


def task_set(config: Config) -> tasks.TaskSet:
    """Return a recipe's own pages, with two tasks each, so that every task has its turn often."""
    pages = tasks.load(FOLDER / config.tasks.file).pages
    return tasks.TaskSet([msgspec.structs.replace(page, train_seeds=(0, 2)) for page in pages])


def played(config: Config, rounds: int = 600) -> SimulatedCircle:
    """Let so many rollouts end."""
    circle = SimulatedCircle(config, task_set(config), Odds(faults=0.02, lift=0.002))
    for _ in range(rounds):
        circle.settle()
        circle.end_one()
        circle.train()
    circle.settle()
    return circle


def orders(circle: SimulatedCircle) -> list[RolloutOrder]:
    return [written.event for written in circle.logs["rollout-orders"]]


def groups(circle: SimulatedCircle) -> list[CuratedGroup]:
    return [written.event for written in circle.logs["curated"]]


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_trains(file: Path):
    circle = played(load(file))
    assert circle.trainer.version >= 2
    assert f"dart-streams run deploy/config/recipes/{file.name}" in file.read_text(), "the file says how to run it"


def test_mobilerl_pays_less_for_longer_successes_and_lets_hopeless_tasks_rest():
    config = load(FOLDER / "mobilerl.toml")
    circle = played(config)
    lengths = {written.event.trajectory_id: written.event.steps for written in circle.logs["trajectories"]}
    compared = 0
    for group in groups(circle):
        won = [m for m in group.members if m.reward == 1.0 and m.source == "online"]
        for one in won:
            for other in won:
                if lengths[one.trajectory_id] < lengths[other.trajectory_id]:
                    assert one.advantage > other.advantage
                    compared += 1
    assert compared > 0
    assert any(line.rests_until > 0 for line in circle.states["dispatch"].tasks.values())


def test_craft_gui_begins_with_short_tasks():
    config = load(FOLDER / "craft-gui.toml")
    [phase] = config.curation.craft_gui.phases
    limits = {task.task_id: task.max_steps for task in task_set(config).train}
    assert max(limits.values()) > phase.max_steps
    ordered = orders(played(config, rounds=9 * phase.groups))
    early = [order for order in ordered if int(order.group_id[1:]) < phase.groups]
    late = [order for order in ordered if int(order.group_id[1:]) >= phase.groups]
    assert {limits[order.task_id] for order in early} <= set(range(phase.max_steps + 1))
    assert max(limits[order.task_id] for order in late) > phase.max_steps


def test_ui_s1_credits_the_steps_of_a_trajectory_apart():
    members = [member for group in groups(played(load(FOLDER / "ui-s1.toml"))) for member in group.members]
    assert all(len(member.step_advantages) == len(member.selected) for member in members)
    assert any(len(set(member.step_advantages)) > 1 for member in members)


def test_entropulse_imitates_successes_of_many_tasks_every_so_many_steps():
    config = load(FOLDER / "entropulse.toml")
    settings, memory, phases = config.trainer.entropulse, SuccessMemory(), []
    trained = played(config, rounds=3000).trainer.trained
    for step, start in enumerate(range(0, len(trained), config.trainer.groups_per_step)):
        if is_due(memory, settings):
            phases.append((step, sft_groups(memory.successes, settings, step)))
            memory = memory.after_phase()
        memory = memory.after_step(trained[start : start + config.trainer.groups_per_step], settings.kept)
    assert [step for step, _ in phases] == [settings.every * (n + 1) for n in range(len(phases))] != []
    successes = {member.trajectory_id for group in trained for member in group.members if member.reward == 1.0}
    for _, updates in phases:
        chosen = [member for update in updates for member in update.members]
        assert {member.trajectory_id for member in chosen} <= successes
        assert len(chosen) > settings.trajectories


def test_ring_lite_takes_more_groups_where_trajectories_are_short():
    config = load(FOLDER / "ring-lite.toml")
    budget = TokenBudget.of(config)
    assert budget is not None
    assert budget.tokens == 1000
    tokens, gathered, batches = 0, 0, []
    for group in groups(played(config, rounds=3000)):
        tokens += 8 * sum(len(member.selected) for member in group.members)
        gathered += 1
        if budget.is_met(tokens, gathered):
            batches.append((tokens, gathered))
            tokens, gathered = 0, 0
    assert all(tokens >= budget.tokens for tokens, _ in batches)
    assert len({gathered for _, gathered in batches}) > 1
