"""The recipes as shipped: each file runs the circle in memory, and what it is named for happens there."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.curation_world import Odds, SimulatedCircle
from dart_streams.config import Config, load, tasks
from topics.curated import CuratedGroup
from topics.rollout_orders import RolloutOrder
from trainer.data.batch_builder import TokenBudget
from trainer.data.successes import SuccessMemory, history_limit
from trainer.learning.imitation import StepImitation, plan_imitation

FOLDER = Path(__file__).parents[3] / "deploy/config/recipes"
RECIPES = sorted(FOLDER.glob("*.toml"))


def task_set(config: Config) -> tasks.TaskSet:
    """Return a recipe's own pages, with two tasks each, so that every task has its turn often."""
    pages = tasks.load(FOLDER / config.tasks.file).pages
    return tasks.TaskSet([msgspec.structs.replace(page, train_seeds=(0, 2)) for page in pages])


def played(config: Config, rounds: int = 600) -> SimulatedCircle:
    """Return the recipe's circle after ``rounds`` rollouts."""
    return SimulatedCircle(config, task_set(config), Odds(faults=0.02, lift=0.002)).play_rounds(rounds)


def orders(circle: SimulatedCircle) -> list[RolloutOrder]:
    return [written.event for written in circle.logs["rollout-orders"]]


def groups(circle: SimulatedCircle) -> list[CuratedGroup]:
    return [written.event for written in circle.logs["curated"]]


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_trains(file: Path):
    circle = played(load(file))
    assert circle.trainer.version >= 2
    assert f"dart-streams run deploy/config/recipes/{file.name}" in file.read_text(), "the file says how to run it"


def test_dart_has_the_settings_of_the_paper():
    config = load(FOLDER / "dart.toml")
    trainer, curation = config.trainer, config.curation
    assert (trainer.kl_beta, trainer.clip_low, trainer.clip_high, trainer.truncate.cap) == (0.1, 0.2, 0.28, 1.0)
    assert (trainer.objective, trainer.aggregate) == ("ppo", "sequences"), "a mean over answers, as in the release"
    assert (curation.budget.base, curation.budget.threshold, curation.entropy.keep) == (8, 0.6, 0.8)
    assert curation.length.dynamic and curation.pool.enabled and curation.dispatch.choice == "even"
    made = groups(played(config))
    assert {len(group.members) for group in made} != {curation.budget.base}, "fewer rollouts of easier tasks"


def test_mobilerl_pays_less_for_longer_successes():
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


def trained_with_imitation(config: Config) -> tuple[list[StepImitation], list[list[CuratedGroup]]]:
    """Return what each step of a run imitates, and the groups that it takes."""
    size, memory, imitations, batches = config.trainer.groups_per_step, SuccessMemory(), [], []
    trained = played(config, rounds=3000).trainer.trained
    for number, start in enumerate(range(0, len(trained), size)):
        imitations.append(plan_imitation(memory, config.trainer, config.curation.dispatch.seed, number + 1))
        batches.append(trained[start : start + size])
        memory = memory.after_step(batches[-1], history_limit(config.trainer))
        memory = memory.after_phase() if imitations[-1].phase else memory
    return imitations, batches


def own_successes(batches: list[list[CuratedGroup]]) -> set[str]:
    members = [member for batch in batches for group in batch for member in group.members if member.selected]
    return {member.trajectory_id for member in members if member.source == "online" and member.reward == 1.0}


def test_entropulse_imitates_successes_of_many_tasks_at_an_interval():
    config = load(FOLDER / "entropulse.toml")
    every, phases = config.trainer.entropulse.every, 0
    imitations, batches = trained_with_imitation(config)
    for step, made in enumerate(imitations, start=1):
        assert bool(made.phase) == (step % every == 0)
        assert made.beside == []
        if made.phase:
            phases += 1
            chosen = [member.trajectory_id for update in made.phase for member in update.members]
            assert set(chosen) <= own_successes(batches[: step - 1])
            assert len(chosen) > config.trainer.entropulse.trajectories
    assert phases > 1


def test_imitate_adds_past_successes_to_each_batch_once_there_are_enough():
    config = load(FOLDER / "imitate.toml")
    settings, on = config.trainer.imitate, 0
    imitations, batches = trained_with_imitation(config)
    for step, made in enumerate(imitations, start=1):
        past = own_successes(batches[: step - 1])
        drawn = [member.trajectory_id for group in made.beside for member in group.members]
        assert len(set(drawn)) == len(drawn) == (settings.trajectories if len(past) >= settings.trajectories else 0)
        assert set(drawn) <= past
        assert made.phase == []
        on += bool(drawn)
    assert on > len(imitations) / 2


def test_ring_lite_takes_more_groups_where_trajectories_are_short():
    config = load(FOLDER / "ring-lite.toml")
    budget = TokenBudget.of(config)
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
