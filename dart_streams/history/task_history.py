"""What was decided for each task and why, from the log: the budgets, orders, rollouts and groups of a run. Pure.

The groups reducer is run again over the trajectories, since that says what became of each group, also of those that
were dropped and so left no event.
"""

from collections import Counter
from typing import Self

import msgspec

from dart_streams.config import Config
from dart_streams.curation import dispatch, groups
from dart_streams.curation.order_tracker import Limits, place
from dart_streams.curation.reducer import InputRecord, InvalidEvent
from dart_streams.history.run_state import RunState
from topics import curated, curation_log, rollout_budgets, rollout_orders, task_difficulty, trajectories
from topics.curated import CuratedGroup
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory

READ = tuple(
    module.TOPIC for module in (trajectories, task_difficulty, rollout_budgets, rollout_orders, curated, curation_log)
)
"""The topics that the history needs."""
UNDER_WAY = "under way"
FATES = {
    "curated": "curated",
    "equal": "dropped: all rewards equal",
    "empty": "dropped: no rollout had a reward recent enough",
    "abandoned": "given up: its last rollouts never came",
}


class GroupHistory(msgspec.Struct):
    """One group of a task: how many rollouts, why, how they ended, and what became of them."""

    group_id: str
    rollouts: int
    max_steps: int
    why: str
    outcomes: dict[str, int] = {}
    fate: str = UNDER_WAY


class TaskRow(msgspec.Struct, frozen=True):
    """A task at a glance; ``rollouts`` and ``max_steps`` are what its next group gets."""

    task: str
    success_rate: float | None
    rollouts: int
    max_steps: int | None
    groups: int
    curated: int
    dropped: int
    pool: int
    why: str


class TaskRecord(msgspec.Struct):
    """A task's groups, newest budget and newest success rate."""

    groups: dict[str, GroupHistory] = {}
    budget: RolloutBudget | None = None
    success_rate: float | None = None


class TaskHistory:
    """The history of a run's tasks; :meth:`of` reads it from a folded log.

    The other methods take the events one by one, each agent's inputs in the order in which it applied them.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.limits = Limits.of(config)
        self.tasks: dict[str, TaskRecord] = {}
        self.groups = groups.GroupsState()

    @classmethod
    def of(cls, config: Config, state: RunState) -> Self:
        """Read the history from a run's state: dispatch's inputs and orders in the order of the curation log."""
        history = cls(config)
        for task_id, success_rate in state.success_rates.items():
            history.rate(task_id, success_rate)
        for entry in state.curation.values():
            if entry.agent != dispatch.NAME:
                continue
            source = entry.source
            if source.topic == rollout_budgets.TOPIC.name and (source.partition, source.offset) in state.budgets:
                history.budget(state.budgets[source.partition, source.offset])
            for order_id in entry.decisions:
                if order_id in state.orders:
                    history.order(state.orders[order_id][0])
        for trajectory in state.trajectories.values():
            history.trajectory(trajectory)
        for group, _ in state.groups.values():
            history.curated(group)
        return history

    def task(self, task_id: str) -> TaskRecord:
        """Return a task's record."""
        return self.tasks.setdefault(task_id, TaskRecord())

    def rate(self, task_id: str, success_rate: float | None) -> None:
        """Apply a task's newest success rate."""
        self.task(task_id).success_rate = success_rate

    def budget(self, event: RolloutBudget) -> None:
        """Apply a task's newest budget."""
        self.task(event.task_id).budget = event

    def order(self, event: RolloutOrder) -> None:
        """Apply an order; the first of a group opens it, for the reason of the newest budget."""
        known = self.task(event.task_id)
        if event.purpose == "train" and event.group_id not in known.groups:
            why = known.budget.reason if known.budget else "because nothing was known yet"
            if event.group_size == 1:
                why = f"a probe, as it always succeeds; {why}"
            known.groups[event.group_id] = GroupHistory(event.group_id, event.group_size, event.max_steps, why)

    def trajectory(self, event: Trajectory) -> None:
        """Apply a trajectory: how a rollout ended, and what became of its group if it was the last."""
        before = msgspec.structs.replace(self.groups.counts)
        record = InputRecord(trajectories.TOPIC.name, 0, 0, event)
        try:
            self.groups, _ = groups.apply(self.groups, record, self.config.curation, self.limits)
        except InvalidEvent:
            return
        group = self.task(event.task_id).groups.get(event.group_id)
        if group is None or place(event.order_id) is None or self.groups.counts.repeated > before.repeated:
            return
        group.outcomes[event.outcome] = group.outcomes.get(event.outcome, 0) + 1
        for name, text in FATES.items():
            if getattr(self.groups.counts, name) > getattr(before, name):
                group.fate = text
        if self.groups.counts.injected > before.injected:
            group.fate += ", with one success from the pool"

    def curated(self, event: CuratedGroup) -> None:
        """Apply a curated group, whatever the present settings would have made of it."""
        group = self.task(event.task_id).groups.get(event.group_id)
        if group is not None and not group.fate.startswith(FATES["curated"]):
            group.fate = FATES["curated"]

    def rows(self) -> list[TaskRow]:
        """Return a row for each task, by name."""
        return [self.row(task_id, known) for task_id, known in sorted(self.tasks.items())]

    def row(self, task_id: str, known: TaskRecord) -> TaskRow:
        """Return a task's row."""
        fates = Counter(group.fate.partition(",")[0].partition(":")[0] for group in known.groups.values())
        budget = known.budget
        return TaskRow(
            task=task_id,
            success_rate=None if known.success_rate is None else round(known.success_rate, 3),
            rollouts=budget.rollouts if budget else self.config.curation.budget.base,
            max_steps=budget.max_steps if budget else None,
            groups=len(known.groups),
            curated=fates["curated"],
            dropped=fates["dropped"] + fates["given up"],
            pool=len(self.groups.pools.get(task_id, ())),
            why=budget.reason if budget else "nothing is known yet",
        )
