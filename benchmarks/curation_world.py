"""A world without screens for the curator: rollouts that end by chance of their names, and a trainer that counts.

Used by benchmarks and tests. Everything is a pure function of an order and a seed, so that the same orders give the
same trajectories in any order and at any time.
"""

import msgspec

from dart_streams import stateless_random as chance
from dart_streams.tasks import Page, TaskSet
from topics.curated import CuratedGroup
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from topics.values import OutcomeKind
from topics.weights import WeightVersion


class Odds(msgspec.Struct, frozen=True):
    """How rollouts end: ``faults`` is the share of faults, ``partial`` that of failures with partial credit."""

    faults: float = 0.0
    partial: float = 0.0
    lift: float = 0.0
    """How much every task's success rate rises with each weight version."""


def task_set(tasks: int, max_steps: int = 10) -> TaskSet:
    """Return a task set of one simulated page with so many training seeds."""
    page = Page(
        environment="simulated",
        page="grid",
        max_steps=max_steps,
        train_seeds=(0, tasks),
        heldout_seeds=(1_000_000, 1_000_001),
    )
    return TaskSet([page])


def success_rate(task_id: str, version: int, odds: Odds, seed: int = 0) -> float:
    """Return how likely a task is solved by a version: its own share, spread over [0, 1], and what was learnt since."""
    return min(1.0, chance.share("skill", seed, task_id) + odds.lift * version)


def play(order: RolloutOrder, version: int, odds: Odds, seed: int = 0) -> Trajectory:
    """Return the trajectory of an order whose tokens all come from ``version``."""
    faulty = chance.share("fault", seed, order.order_id) < odds.faults
    won = chance.share("win", seed, order.order_id) < success_rate(order.task_id, version, odds, seed)
    outcome: OutcomeKind = "env_error" if faulty else "success" if won else "failure"
    partly = chance.share("part", seed, order.order_id) < odds.partial
    steps = 1 + chance.number("steps", seed, order.order_id) % max(1, order.max_steps)
    return Trajectory(
        trajectory_id=f"t-{order.order_id}",
        order_id=order.order_id,
        group_id=order.group_id,
        group_size=order.group_size,
        attempt=order.attempt,
        task_id=order.task_id,
        purpose=order.purpose,
        outcome=outcome,
        reward=None if faulty else 1.0 if won else 0.5 if partly else 0.0,
        steps=steps,
        step_entropies=[chance.share("entropy", seed, order.order_id, step) for step in range(steps)],
        version_min=version,
        version_max=version,
        started_ms=0,
        finished_ms=0,
    )


class CountingTrainer:
    """Stands for the trainer: a new version for every ``groups_per_step`` groups. ``trained`` are those it took."""

    def __init__(self, groups_per_step: int) -> None:
        self.groups_per_step = groups_per_step
        self.waiting: list[CuratedGroup] = []
        self.trained: list[CuratedGroup] = []
        self.version = 0

    def take(self, group: CuratedGroup) -> WeightVersion | None:
        """Take a group; return the version that it completes, if it does."""
        self.waiting.append(group)
        return self.train()

    def train(self) -> WeightVersion | None:
        """Make a step if there are groups enough."""
        if len(self.waiting) < self.groups_per_step:
            return None
        self.trained += self.waiting[: self.groups_per_step]
        del self.waiting[: self.groups_per_step]
        self.version += 1
        return self.weights()

    def weights(self) -> WeightVersion:
        """Return the newest version as announced."""
        return WeightVersion(
            model_id="simulated",
            version=self.version,
            uri="memory://",
            sha256="",
            train_step=self.version,
            epoch=1,
            groups_consumed=len(self.trained),
        )
