"""Decisions for each task and their reasons, from a run's log. Pure.

The groups reducer runs again over the trajectories, because dropped groups leave no event.
"""

from collections import Counter, defaultdict
from typing import Literal

import msgspec

from console.runs.run_state import RunState
from dart_streams.config import Config
from dart_streams.curation import dispatch, groups
from dart_streams.curation.order_tracker import Limits, parse_order_id
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import InputRecord, InvalidEvent
from topics import curated, curation_log, rollout_budgets, rollout_orders, task_difficulty, trajectories
from topics.curation_log import Applied
from topics.rollout_budgets import RolloutBudget
from topics.trajectories import Trajectory

READ = tuple(
    module.TOPIC for module in (trajectories, task_difficulty, rollout_budgets, rollout_orders, curated, curation_log)
)
UNDER_WAY = "under way"
ProposalState = Literal["accepted", "refused", "waiting"]
FATES = {
    "curated": "curated",
    "equal": "dropped: all rewards equal",
    "empty": "dropped: no rollout had a reward recent enough",
    "too_large": "dropped: its record would be too large",
    "abandoned": "given up: its last rollouts never came",
}


class GroupHistory(msgspec.Struct):
    """A group of a task: its rollouts and their reason, their outcomes, and the group's fate.

    ``decided_by`` is the trajectory with which the groups agent decided the fate, empty while it is under way.
    """

    group_id: str
    rollouts: int
    max_steps: int
    why: str
    outcomes: dict[str, int] = {}
    fate: str = UNDER_WAY
    decided_by: str = ""


class TaskRow(msgspec.Struct, frozen=True):
    """Summary of a task; ``rollouts`` and ``max_steps`` are those of its next group."""

    task: str
    success_rate: float | None
    rollouts: int
    max_steps: int | None
    groups: int
    curated: int
    dropped: int
    pool: int
    why: str


class TaskHistory:
    """The tasks of a run from its log, or the task ``only``; ``groups`` are by task and id, in the log's order."""

    def __init__(self, config: Config, state: RunState, only: str = "") -> None:
        self.config = config
        self.only = only
        self.success_rates = state.success_rates
        self.budgets: dict[str, RolloutBudget] = {}
        self.groups: defaultdict[str, dict[str, GroupHistory]] = defaultdict(dict)
        self.reducer = groups.GroupsState()
        self.rules = bind_rules(config, load=False)
        for entry in state.curation.values():
            if entry.agent == dispatch.NAME:
                self._dispatched(entry, state)
        for trajectory in state.trajectories.values():
            if only in ("", trajectory.task_id):
                self._finished(trajectory)
        for event, _ in state.groups.values():
            group = self.groups.get(event.task_id, {}).get(event.group_id)
            if group is not None and not group.fate.startswith(FATES["curated"]):
                group.fate = FATES["curated"]  # even if the present settings would drop it

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks that the data manager has records of."""
        return sorted({*self.success_rates, *self.budgets, *self.groups, *self.reducer.pools})

    def _dispatched(self, entry: Applied, state: RunState) -> None:
        """Apply an input of dispatch and its orders; a group's first order opens it with the newest budget's reason."""
        source = entry.source
        if source.topic == rollout_budgets.TOPIC.name and (source.partition, source.offset) in state.budgets:
            budget = state.budgets[source.partition, source.offset]
            self.budgets[budget.task_id] = budget
        for event, _ in (state.orders[order_id] for order_id in entry.decisions if order_id in state.orders):
            if self.only not in ("", event.task_id):
                continue
            if event.purpose == "train" and event.group_id not in (known := self.groups[event.task_id]):
                newest = self.budgets.get(event.task_id)
                why = newest.reason if newest else "because nothing was known yet"
                if event.group_size == 1:
                    why = f"a probe, as it always succeeds; {why}"
                known[event.group_id] = GroupHistory(event.group_id, event.group_size, event.max_steps, why)

    def _finished(self, event: Trajectory) -> None:
        """Apply a trajectory to the reducer, and note its outcome and its group's fate."""
        before = msgspec.structs.replace(self.reducer.counts)
        record = InputRecord(trajectories.TOPIC.name, 0, 0, event)
        try:
            credited = self.config.feedback.credit_taken_over
            self.reducer, _ = groups.apply(
                self.reducer, record, self.config.curation, Limits.of(self.config), self.rules, credited
            )
        except InvalidEvent:
            return
        group, counts = self.groups.get(event.task_id, {}).get(event.group_id), self.reducer.counts
        if group is None or parse_order_id(event.order_id) is None or counts.repeated > before.repeated:
            return
        group.outcomes[event.outcome] = group.outcomes.get(event.outcome, 0) + 1
        for name, text in FATES.items():
            if getattr(counts, name) > getattr(before, name):
                group.fate, group.decided_by = text, event.trajectory_id
        if counts.injected > before.injected:
            group.fate += ", with one success from the pool"

    def rows(self) -> list[TaskRow]:
        """Return a row for each task, by name."""
        return [self.row(task_id) for task_id in self.tasks]

    def row(self, task_id: str) -> TaskRow:
        """Return a task's row."""
        known, budget = self.groups.get(task_id, {}), self.budgets.get(task_id)
        success_rate = self.success_rates.get(task_id)
        fates = Counter(group.fate.partition(",")[0].partition(":")[0] for group in known.values())
        return TaskRow(
            task=task_id,
            success_rate=None if success_rate is None else round(success_rate, 3),
            rollouts=budget.rollouts if budget else self.config.curation.budget.base,
            max_steps=budget.max_steps if budget else None,
            groups=len(known),
            curated=fates["curated"],
            dropped=fates["dropped"] + fates["given up"],
            pool=len(self.reducer.pools.get(task_id, ())),
            why=budget.reason if budget else "nothing is known yet",
        )


class ProposalRow(msgspec.Struct, frozen=True):
    """A proposed task and what became of it."""

    task: str
    state: ProposalState
    max_steps: int
    maker: str
    reason: str


def proposal_rows(state: RunState) -> list[ProposalRow]:
    """Return each proposed task of a run, in the log's order."""
    rows = []
    for task in state.proposed.values():
        verdict = state.verdicts.get(task.task_id)
        known: ProposalState = "waiting" if verdict is None else "accepted" if verdict.accepted else "refused"
        rows.append(ProposalRow(task.task_id, known, task.max_steps, task.maker, verdict.reason if verdict else ""))
    return rows
