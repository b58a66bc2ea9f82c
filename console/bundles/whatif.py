"""Simulates a run with other settings: the data manager runs against the recorded rollouts. Pure and deterministic.

With other settings dispatch orders rollouts that were never played, so the reducers run in a closed circle. The k-th
rollout of a task ends as the k-th recorded one did, and takes as long. Further rollouts repeat one of the task's last,
and tasks without any borrow another task's. The trainer makes a version of every ``groups_per_step`` groups, in no
time. Metrics are compared with a simulation of the run's own settings, and those with the recorded metrics.
"""

import heapq
from collections import deque
from typing import Any, NamedTuple

import msgspec

from console.bundles.bundle_inputs import bundle_events
from console.bundles.replay import log_entries
from console.runs.bundle import Bundle
from dart_streams import stateless_random
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.curation import dispatch, groups
from dart_streams.curation.in_memory import CountingTrainer, InMemoryCircle
from dart_streams.curation.order_tracker import parse_order_id
from topics import curated, rollout_budgets, rollout_orders, task_verdicts, trajectories, weights, weights_serving
from topics.curated import CuratedGroup
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.task_verdicts import TaskVerdict
from topics.trajectories import StepAction, Trajectory
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

RECENT = 16
"""Last recorded rollouts of a task from which further ones are drawn."""
POINTS = 120


class WhatIfMetrics(msgspec.Struct, kw_only=True):
    """Metrics of a setting; ``samples`` are steps trained on, and ``samples_saved`` steps left out of trained groups.

    ``groups_dropped`` is None for the recorded run, whose log lacks them. ``rollouts_for_steps`` is the number of
    rollouts until as many optimizer steps as with the run's own settings, if ever. ``curve`` has (rollouts ended,
    optimizer steps).
    """

    name: str
    rollouts_ordered: int = 0
    rollouts_ended: int = 0
    env_steps: int = 0
    groups_opened: int = 0
    groups_formed: int = 0
    groups_dropped: int | None = None
    steps_trained: int = 0
    samples: int = 0
    samples_saved: int = 0
    rollouts_for_steps: int | None = None
    borrowed: int = 0
    curve: list[tuple[int, int]] = []


class RecordedOutcome(NamedTuple):
    """Outcome of a recorded rollout."""

    outcome: Any
    reward: float | None
    steps: int
    step_entropies: list[float]
    screens: list[str]
    actions: list[StepAction]
    took_ms: int


class RecordedOutcomes:
    """The rollouts of a bundle by task, in order of their end, and the recorded metrics."""

    def __init__(self, bundle: Bundle) -> None:
        self.demonstrations: list[Trajectory] = []
        self.ends: dict[str, list[RecordedOutcome]] = {}
        self.metrics = WhatIfMetrics(name="recorded")
        self.accepted = accepted_tasks(bundle)
        steps: dict[str, int] = {}
        for event in bundle_events(bundle, trajectories.TOPIC):
            if event.purpose == "demonstration":
                self.demonstrations.append(event)
            elif event.purpose == "train":
                took_ms = max(1, event.finished_ms - event.started_ms)
                end = RecordedOutcome(
                    event.outcome,
                    event.reward,
                    event.steps,
                    event.step_entropies,
                    event.screens,
                    event.actions,
                    took_ms,
                )
                if not event.person_steps:
                    self.ends.setdefault(event.task_id, []).append(end)
                self.metrics.rollouts_ended += 1
                self.metrics.env_steps += event.steps
            steps[event.trajectory_id] = event.steps
        opened = [order.group_id for order in bundle_events(bundle, rollout_orders.TOPIC) if order.purpose == "train"]
        self.metrics.rollouts_ordered, self.metrics.groups_opened = len(opened), len(set(opened))
        for group in bundle_events(bundle, curated.TOPIC):
            if not group.feedback:
                self.metrics.groups_formed += 1
                count(self.metrics, group, steps)
        versions = bundle_events(bundle, weights.TOPIC)
        self.metrics.steps_trained = max((version.train_step for version in versions), default=0)

    def end(self, task_id: str, number: int) -> tuple[RecordedOutcome, bool]:
        """Return the outcome of rollout ``number`` (from 0) of a task, and whether it is borrowed from another task."""
        known = self.ends.get(task_id)
        if known is None:
            names = sorted(self.ends)
            known = self.ends[names[stateless_random.number("borrowed", task_id) % len(names)]]
            return draw_outcome(known, task_id, number), True
        return known[number] if number < len(known) else draw_outcome(known, task_id, number), False


def accepted_tasks(bundle: Bundle) -> list[tuple[int, TaskVerdict]]:
    """Return the accepted tasks of a run, each with the finishes of training rollouts that dispatch had read before."""
    if not bundle.has(task_verdicts.TOPIC.name):
        return []
    read = {
        (topic.name, record.offset): event
        for topic in (task_verdicts.TOPIC, rollout_budgets.TOPIC)
        for record, event in zip(bundle.records(topic.name), bundle_events(bundle, topic), strict=True)
    }
    accepted, ended = list[tuple[int, TaskVerdict]](), 0
    for entry in log_entries(bundle):
        event = read.get((entry.source.topic, entry.source.offset)) if entry.agent == dispatch.NAME else None
        if isinstance(event, TaskVerdict) and event.accepted:
            accepted.append((ended, event))
        elif isinstance(event, RolloutBudget):
            ended += parse_order_id(event.cause.order_id) is not None
    return accepted


def draw_outcome(known: list[RecordedOutcome], task_id: str, number: int) -> RecordedOutcome:
    """Return one of the last recorded rollouts, deterministic in its arguments."""
    recent = known[-RECENT:]
    return recent[stateless_random.number("what if", task_id, number) % len(recent)]


def count(metrics: WhatIfMetrics, group: CuratedGroup, steps: dict[str, int]) -> None:
    """Count the steps of a group that are trained on, and those left out."""
    for member in group.members:
        metrics.samples += len(member.selected)
        metrics.samples_saved += steps.get(member.trajectory_id, len(member.selected)) - len(member.selected)


class SimulatedRun:
    """The in-memory circle with one setting, slots for rollouts, and a trainer that takes no time."""

    def __init__(self, name: str, config: Config, tasks: TaskSet, recorded: RecordedOutcomes) -> None:
        self.recorded = recorded
        self.metrics = WhatIfMetrics(name=name)
        self.circle = InMemoryCircle(config, tasks)
        self.trainer = CountingTrainer(config.trainer.groups_per_step)
        self.slots = max(1, config.env.workers * config.env.slots)
        self.workers = config.rollout.workers
        self.waiting: list[RolloutOrder] = []
        self.running: list[tuple[int, int, RolloutOrder, int, RecordedOutcome]] = []
        self.played: dict[str, int] = {}
        self.steps: dict[str, int] = {}
        self.started = 0
        self.now_ms = 0

    def run(self, rollouts: int) -> WhatIfMetrics:
        """Simulate ``rollouts`` rollouts, and return the metrics."""
        for demonstration in self.recorded.demonstrations:
            self.circle.publish(trajectories.TOPIC.name, demonstration.trajectory_id, demonstration)
        accepted = deque(self.recorded.accepted)
        self.accept(accepted)
        self.announce(self.trainer.weights())
        self.settle()
        every, metrics = max(1, rollouts // POINTS), self.metrics
        while metrics.rollouts_ended < rollouts and (self.waiting or self.running):
            self.start()
            self.end_next()
            self.accept(accepted)
            if metrics.rollouts_ended % every == 0 or metrics.rollouts_ended == rollouts:
                metrics.curve.append((metrics.rollouts_ended, metrics.steps_trained))
                self.circle.delete_read()
        metrics.groups_opened = self.circle.states[dispatch.NAME].next_group
        counts = self.circle.states[groups.NAME].counts
        metrics.groups_dropped = counts.equal + counts.empty + counts.abandoned
        return metrics

    def accept(self, accepted: deque[tuple[int, TaskVerdict]]) -> None:
        """Let the tasks join that were accepted by now."""
        if not self.circle.config.tasks.proposals:
            return
        while accepted and accepted[0][0] <= self.metrics.rollouts_ended:
            _, verdict = accepted.popleft()
            self.circle.publish(task_verdicts.TOPIC.name, "", verdict)

    def start(self) -> None:
        """Start the oldest waiting orders in free slots."""
        free = self.slots - len(self.running)
        for order in self.waiting[:free]:
            number = self.played.get(order.task_id, 0)
            self.played[order.task_id] = number + 1
            end, borrowed = self.recorded.end(order.task_id, number)
            self.metrics.borrowed += borrowed
            self.started += 1
            heapq.heappush(self.running, (self.now_ms + end.took_ms, self.started, order, self.trainer.version, end))
        del self.waiting[:free]

    def end_next(self) -> None:
        """End the next rollout."""
        self.now_ms, _, order, version, end = heapq.heappop(self.running)
        steps = min(end.steps, order.max_steps)
        cut = end.outcome == "success" and steps < end.steps
        self.metrics.rollouts_ended += 1
        self.metrics.env_steps += steps
        self.steps[order.order_id] = steps
        trajectory = Trajectory(
            trajectory_id=order.order_id,
            order_id=order.order_id,
            group_id=order.group_id,
            group_size=order.group_size,
            attempt=order.attempt,
            task_id=order.task_id,
            purpose="train",
            outcome="truncated" if cut else end.outcome,
            reward=0.0 if cut else end.reward,
            steps=steps,
            step_entropies=end.step_entropies[:steps],
            screens=end.screens[:steps],
            actions=end.actions[:steps],
            version_min=version,
            version_max=self.trainer.version,
            started_ms=self.now_ms - end.took_ms,
            finished_ms=self.now_ms,
        )
        self.circle.publish(trajectories.TOPIC.name, order.order_id, trajectory)
        self.settle()

    def settle(self) -> None:
        """Let agents and trainer process all records; queue the rollouts that dispatch orders."""
        self.circle.settle()
        for formed in self.circle.poll(curated.TOPIC.name):
            self.metrics.groups_formed += 1
            count(self.metrics, formed, self.steps)
            version = self.trainer.take(formed)
            if version is not None:
                self.trainer.trained.clear()
                self.metrics.steps_trained += 1
                self.announce(version)
                self.circle.settle()
        orders = self.circle.poll(rollout_orders.TOPIC.name)
        self.metrics.rollouts_ordered += len(orders)
        self.waiting += orders

    def announce(self, version: WeightVersion) -> None:
        """Announce a version, and that all workers serve it."""
        self.circle.publish(weights.TOPIC.name, "", version)
        for worker in range(self.workers):
            served = WeightsServing(worker_id=str(worker), version=version.version, since_ms=0, alive_ms=0)
            self.circle.publish(weights_serving.TOPIC.name, "", served)


def compare(
    recorded: RecordedOutcomes, tasks: TaskSet, own: Config, variants: dict[str, Config]
) -> list[WhatIfMetrics]:
    """Return the recorded metrics, and those of a simulation of the run's own settings and of each variant."""
    if not recorded.ends:
        return [recorded.metrics]
    rollouts = recorded.metrics.rollouts_ended
    simulated = [
        SimulatedRun(name, config, tasks, recorded).run(rollouts)
        for name, config in {"own settings": own, **variants}.items()
    ]
    goal = simulated[0].steps_trained
    for metrics in simulated:
        metrics.rollouts_for_steps = next((ended for ended, steps in metrics.curve if steps >= goal), None)
    return [recorded.metrics, *simulated]
