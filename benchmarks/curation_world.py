"""Simulated rollouts of the in-memory circle; an outcome is a pure function of order and seed.

The same orders give the same trajectories in any order. The caller or a seeded generator chooses the next rollout and
agent, so property tests can try any interleaving and repeat a failure.
"""

import random
from collections.abc import Sequence
from typing import Self

import msgspec

from dart_streams import stateless_random
from dart_streams.config import Config
from dart_streams.config.tasks import Page, TaskSet
from dart_streams.curation.in_memory import CountingTrainer, InMemoryCircle, Subscription, Written
from dart_streams.episodes.guidance import prefix_length
from topics import curated, trajectories, weights, weights_serving
from topics.rollout_orders import RolloutOrder
from topics.trajectories import StepAction, Trajectory
from topics.values import OutcomeKind
from topics.weights_serving import WeightsServing


class Odds(msgspec.Struct, frozen=True):
    """Outcome odds: share of ``faults``, and of ``partial`` credit among failures."""

    faults: float = 0.0
    partial: float = 0.0
    lift: float = 0.0
    """Rise of every task's success rate per weight version."""


def task_set(tasks: int, max_steps: int = 10) -> TaskSet:
    """Return a task set of one simulated page with N training seeds."""
    page = Page(
        environment="simulated",
        page="grid",
        max_steps=max_steps,
        train_seeds=(0, tasks),
        heldout_seeds=(1_000_000, 1_000_001),
    )
    return TaskSet([page])


def success_rate(task_id: str, version: int, odds: Odds, seed: int = 0) -> float:
    """Return a task's success probability under a version: a fixed share in [0, 1], plus the lift."""
    return min(1.0, stateless_random.share("skill", seed, task_id) + odds.lift * version)


def play(order: RolloutOrder, version: int, odds: Odds, seed: int = 0) -> Trajectory:
    """Return the trajectory of an order whose tokens come from ``version``."""
    faulty = stateless_random.share("fault", seed, order.order_id) < odds.faults
    won = stateless_random.share("win", seed, order.order_id) < success_rate(order.task_id, version, odds, seed)
    outcome: OutcomeKind = "env_error" if faulty else "success" if won else "failure"
    partly = stateless_random.share("part", seed, order.order_id) < odds.partial
    steps = 1 + stateless_random.number("steps", seed, order.order_id) % max(1, order.max_steps)
    steps, recorded = follow_guide(order, steps, seed)
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
        step_entropies=[stateless_random.share("entropy", seed, order.order_id, step) for step in range(steps)],
        version_min=version,
        version_max=version,
        started_ms=0,
        finished_ms=0,
        screens=screens_of(order, steps, seed),
        actions=[
            StepAction(name="click", x=40 * (stateless_random.number("place", seed, order.order_id, step) % 3), y=20)
            for step in range(steps)
        ],
        guided=order.guide is not None,
        recorded_steps=recorded,
    )


def follow_guide(order: RolloutOrder, steps: int, seed: int) -> tuple[int, list[int]]:
    """Return the steps of a rollout, and which are recorded, if its recording has ``steps`` steps.

    With patches the policy leaves the recording at half of the steps.
    """
    guide = order.guide
    if guide is None:
        return steps, []
    if guide.mode == "prefix":
        prefix = prefix_length(guide, steps)
        return prefix + 1 if guide.single else steps, list(range(prefix))
    left = [step for step in range(steps) if stateless_random.share("left", seed, order.order_id, step) < 0.5]
    return left[guide.patches] + 1 if len(left) > guide.patches else steps, left[: guide.patches]


def screens_of(order: RolloutOrder, steps: int, seed: int) -> list[str]:
    """Return the screens of a rollout: all of a task begin at one, and each later step shows one of two."""
    turns = [bool(step) and stateless_random.share("turn", seed, order.order_id, step) < 0.5 for step in range(steps)]
    keys = [stateless_random.number("screen", seed, order.task_id, step, turn) for step, turn in enumerate(turns)]
    return [f"{key:016x}"[-16:] for key in keys]


class SimulatedCircle(InMemoryCircle):
    """In-memory circle with running rollouts and a counting trainer."""

    def __init__(self, config: Config, tasks: TaskSet, odds: Odds, seed: int = 0) -> None:
        super().__init__(config, tasks)
        self.odds = odds
        self.seed = seed
        self.random = random.Random(seed)
        self.running: list[tuple[RolloutOrder, int]] = []
        self.trainer = CountingTrainer(config.trainer.groups_per_step)
        self.publish(weights.TOPIC.name, "", self.trainer.weights())

    def publish(self, topic: str, record_id: str, event: object) -> None:
        """Append to a topic; orders start at once with the present weights."""
        super().publish(topic, record_id, event)
        if isinstance(event, RolloutOrder):
            self.running.append((event, self.trainer.version))

    def choose(self, waiting: list[Subscription]) -> Subscription:
        """Draw the next reader."""
        return self.random.choice(waiting)

    def play_rounds(self, rounds: int) -> Self:
        """Let ``rounds`` rollouts end, the agents read on after each, and the trainer take what they curate."""
        for _ in range(rounds):
            self.settle()
            self.end_one()
            self.train()
        self.settle()
        return self

    def end_one(self, index: int | None = None) -> None:
        """End one of the running rollouts."""
        order, version = self.running.pop(self.random.randrange(len(self.running)) if index is None else index)
        trajectory = play(order, version, self.odds, self.seed)
        self.publish(trajectories.TOPIC.name, trajectory.trajectory_id, trajectory)

    def train(self, most: int = 1_000_000) -> None:
        """Let the trainer take up to ``most`` waiting groups."""
        groups: Sequence[Written] = self.logs.get(curated.TOPIC.name, [])
        taken = len(self.trainer.trained) + len(self.trainer.waiting)
        for written in groups[taken : taken + most]:
            version = self.trainer.take(written.event)
            if version is not None:
                self.publish(weights.TOPIC.name, "", version)

    def serve(self, worker: int, version: int) -> None:
        """Announce a rollout worker's version; only coupled dispatch reads it."""
        event = WeightsServing(worker_id=f"rollout-{worker}", version=version, since_ms=0, alive_ms=0)
        self.publish(weights_serving.TOPIC.name, "", event)
