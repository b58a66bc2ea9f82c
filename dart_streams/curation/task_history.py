"""What was decided for each task and why, told from the log: the budgets, orders, rollouts and groups of a run.

The groups reducer is run again over the trajectories, since that says what became of each group, also of those that
were dropped and so left no event.
"""

from collections import Counter

import msgspec

from dart_streams.config import Config
from dart_streams.curation import groups
from dart_streams.curation.order_tracker import Limits, parse_order_id
from dart_streams.curation.reducer import InputRecord, InvalidEvent
from topics.curated import CuratedGroup
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory

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
    """All that the log says of a task so far."""

    groups: dict[str, GroupHistory] = {}
    budget: RolloutBudget | None = None
    success_rate: float | None = None


class TaskHistory:
    """Folds the records of a run. Give each agent's inputs in the order it applied them."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.limits = Limits.of(config)
        self.tasks: dict[str, TaskRecord] = {}
        self.groups = groups.GroupsState()

    def task(self, task_id: str) -> TaskRecord:
        """Return what is known of a task."""
        return self.tasks.setdefault(task_id, TaskRecord())

    def rate(self, task_id: str, success_rate: float | None) -> None:
        """Note a task's newest success rate."""
        self.task(task_id).success_rate = success_rate

    def budget(self, event: RolloutBudget) -> None:
        """Note a task's newest budget."""
        self.task(event.task_id).budget = event

    def order(self, event: RolloutOrder) -> None:
        """Note an order; the first of a group opens it, for the reason of the newest budget."""
        known = self.task(event.task_id)
        if event.purpose == "train" and event.group_id not in known.groups:
            why = known.budget.reason if known.budget else "because nothing was known yet"
            if event.group_size == 1:
                why = f"a probe, as it always succeeds; {why}"
            known.groups[event.group_id] = GroupHistory(event.group_id, event.group_size, event.max_steps, why)

    def trajectory(self, record: InputRecord) -> None:
        """Note how a rollout ended, and what became of its group if it was the last."""
        event: Trajectory = record.event
        before = msgspec.structs.replace(self.groups.counts)
        try:
            self.groups, _ = groups.apply(self.groups, record, self.config.curation, self.limits)
        except InvalidEvent:
            return
        group = self.task(event.task_id).groups.get(event.group_id)
        if group is None or parse_order_id(event.order_id) is None or self.groups.counts.repeated > before.repeated:
            return
        group.outcomes[event.outcome] = group.outcomes.get(event.outcome, 0) + 1
        for name, text in FATES.items():
            if getattr(self.groups.counts, name) > getattr(before, name):
                group.fate = text
        if self.groups.counts.injected > before.injected:
            group.fate += ", with one success from the pool"

    def curated(self, event: CuratedGroup) -> None:
        """Note that a group was curated, whatever the present settings would have made of it."""
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
