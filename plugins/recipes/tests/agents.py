"""Agents of a recipe, alone and in a circle in memory, for its tests."""

from pathlib import Path
from typing import Any

import msgspec

from benchmarks.curation_world import Odds, SimulatedCircle
from dart_streams.config import Config, parse, tasks
from dart_streams.config.recipes import override_tables
from dart_streams.config.tables import read_tables
from dart_streams.config.tasks import TaskSet
from tests.sources import ROOT
from tests.unit.curation.test_groups import Groups
from topics.curated import CuratedGroup
from topics.rollout_orders import RolloutOrder

DEMONSTRATION = ROOT / "deploy/config/demo.toml"


def recipe_config(*recipes: str, **tables: Any) -> Config:
    """Return the demonstration's configuration with recipes, and tables over them."""
    demonstration = read_tables(DEMONSTRATION, "no demonstration")
    return parse(override_tables(demonstration, {"recipe": list(recipes), "env": {"slots": 16}} | tables))


def task_set(config: Config) -> TaskSet:
    """Return the demonstration's pages, with two tasks each, so that every task has its turn often."""
    pages = tasks.load(DEMONSTRATION.parent / Path(config.tasks.file).name).pages
    return TaskSet([msgspec.structs.replace(page, train_seeds=(0, 2)) for page in pages])


def played(config: Config, rounds: int = 400) -> SimulatedCircle:
    """Return the circle of a configuration after ``rounds`` rollouts."""
    return SimulatedCircle(config, task_set(config), Odds(faults=0.02, lift=0.002)).play_rounds(rounds)


def see(agent: Groups, sample: int, reward: float, screens: str, size: int = 3) -> CuratedGroup | None:
    """Let a rollout finish that took one action on each of these screens."""
    count = len(screens)
    return agent.see(
        sample, reward, size, trajectory_id=f"t{sample}", steps=count, step_entropies=[0.1] * count, screens=[*screens]
    )


def orders_in(circle: SimulatedCircle) -> list[RolloutOrder]:
    """Return all rollout orders of a circle."""
    return [written.event for written in circle.logs["rollout-orders"]]


def groups_in(circle: SimulatedCircle) -> list[CuratedGroup]:
    """Return all curated groups of a circle."""
    return [written.event for written in circle.logs["curated"]]
