"""The recipes as shipped: each file runs the circle in memory, and what it is named for happens there."""

from pathlib import Path

import pytest

from dart_streams.config import Config, load
from tests.unit.recipes.agents import groups_in, played, recipe_config
from topics.curated import CuratedGroup
from trainer.data.batch_builder import TokenBudget
from trainer.data.successes import SuccessMemory, history_limit
from trainer.learning.imitation import StepImitation, plan_imitation

FOLDER = Path(__file__).parents[3] / "deploy/config/recipes"
RECIPES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_trains(file: Path):
    circle = played(load(file))
    assert circle.trainer.version >= 2
    assert f"dart-streams run deploy/config/recipes/{file.name}" in file.read_text(), "the file says how to run it"


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
    config = recipe_config("imitate", curation={"dispatch": {"choice": "even"}})
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
    for group in groups_in(played(config, rounds=3000)):
        tokens += 8 * sum(len(member.selected) for member in group.members)
        gathered += 1
        if budget.is_met(tokens, gathered):
            batches.append((tokens, gathered))
            tokens, gathered = 0, 0
    assert all(tokens >= budget.tokens for tokens, _ in batches)
    assert len({gathered for _, gathered in batches}) > 1
