"""Well-formed records of foreign programs end no circle, whatever its recipe, and no record takes long."""

import pytest

from dart_streams.config.recipes import known_recipes
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.reducer import Agent, InputRecord, advance
from plugins.recipes.tests.agents import recipe_config, task_set
from tests import events
from tests.faults import foreign_records
from topics.values import MOST_NAME

SEEDS = (122, 184, 239, 260, 294)
"""Seeds that found a record which ended training for good."""


@pytest.mark.parametrize("recipe", known_recipes())
def test_a_circle_goes_on_after_foreign_records(recipe: str):
    assert [found for seed in SEEDS for found in foreign_records.findings(recipe, seed)] == []


def difficulty_of(recipe: str) -> Agent:
    config = recipe_config(recipe)
    return next(agent for agent in bind_agents(config, task_set(config)) if agent.name == "difficulty")


def test_a_decision_under_an_id_that_is_too_long_is_refused():
    """GUI-Bee orders an exploration under the id of its task, and more; such an id can't be logged."""
    agent = difficulty_of("gui-bee")
    task_id = "miniwob/" + "x" * (MOST_NAME - 12) + "#1"
    trajectory = events.trajectory(task_id=task_id, purpose="demonstration", screens=["a"])
    result = advance(agent, agent.state(), InputRecord("trajectories", 0, 0, trajectory))
    assert result.applied.decisions == [] and "would have an id of" in result.refused


def test_an_error_of_a_reducer_refuses_the_record_by_its_name():
    def fail(state: object, record: InputRecord) -> None:
        raise KeyError("seven")

    agent = difficulty_of("dart")
    result = advance(agent._replace(apply=fail), agent.state(), InputRecord("trajectories", 0, 0, events.trajectory()))
    assert result.refused == "it can't be applied: KeyError('seven')" and result.applied.source.offset == 0
