"""Groups, optimizer steps and tasks for the page: what was decided, what was trained on it, and who serves it. Pure."""

from collections.abc import Iterable

import msgspec

from dart_streams.config import Config
from dart_streams.console.runs.run_state import RunState
from dart_streams.console.runs.task_history import GroupHistory, TaskHistory, TaskRow
from dart_streams.console.views.page.source import NotFound
from topics import training_metrics
from topics.rollout_orders import RolloutOrder
from topics.trained import TrainedStep
from topics.training_metrics import TrainingMetric
from topics.trajectories import Trajectory

EQUAL = 1e-9
"""Rewards that differ by less are equal: their advantages are 0."""


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout of a group; what is null is not known yet, or the group was not curated."""

    trajectory_id: str
    sample: int | None
    attempt: int | None
    state: str
    reward: float | None = None
    advantage: float | None = None
    selected: list[int] = []
    source: str = "online"
    steps: int | None = None
    version_min: int | None = None
    version_max: int | None = None


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group: its rollouts, what became of it and why, and the optimizer steps that took it.

    ``equal`` says that all rewards are the same, so that it teaches nothing. ``waiting`` counts rollouts to come.
    """

    group_id: str
    task_id: str
    fate: str
    why: str
    curated_ms: int | None
    mean: float | None
    std: float | None
    equal: bool
    waiting: int
    members: list[GroupMember]
    train_steps: list[int]


def group(group_id: str, state: RunState, config: Config) -> GroupView:
    """Return a group; raise :class:`NotFound` if the run has none such."""
    known = state.groups.get(group_id)
    orders = [state.orders[order_id][0] for order_id in state.orders_of.get(group_id, ())]
    if known is None and not orders:
        raise NotFound(f"no group {group_id!r} in this run")
    task_id = known[0].task_id if known else orders[0].task_id
    history = TaskHistory(config, state, task_id).groups.get(task_id, {}).get(group_id)
    members = [*ordered(orders, state), *pooled(group_id, state)]
    rewards = [member.reward for member in members if member.reward is not None]
    settled = {member.sample for member in members if member.reward is not None}
    size = max((order.group_size for order in orders), default=len(settled))
    return GroupView(
        group_id=group_id,
        task_id=task_id,
        fate=history.fate if history else "curated" if known else "",
        why=history.why if history else "",
        curated_ms=known[1] if known else None,
        mean=known[0].mean if known else None,
        std=known[0].std if known else None,
        equal=len(rewards) > 1 and max(rewards) - min(rewards) < EQUAL,
        waiting=0 if known else max(0, size - len(settled)),
        members=members,
        train_steps=state.trained_with.get(group_id, []),
    )


def ordered(orders: Iterable[RolloutOrder], state: RunState) -> list[GroupMember]:
    """Return the rollouts that were ordered for a group, by sample and attempt."""
    found = []
    for order in sorted(orders, key=lambda one: (one.sample, one.attempt)):
        finished = state.finished.get(order.order_id)
        running = next((key for key, seen in state.open.items() if seen.order.order_id == order.order_id), "")
        if finished is None:
            word = "running" if running else "ordered"
            found.append(GroupMember(trajectory_id=running, sample=order.sample, attempt=order.attempt, state=word))
        else:
            found.append(member_of(order.group_id, finished, state, order))
    return found


def member_of(group_id: str, finished: Trajectory, state: RunState, order: RolloutOrder | None) -> GroupMember:
    """Return a finished rollout, with what curation made of it."""
    identity = finished.trajectory_id
    curated = (
        [m for m in state.groups[group_id][0].members if m.trajectory_id == identity]
        if group_id in state.groups
        else []
    )
    return GroupMember(
        trajectory_id=identity,
        sample=order.sample if order else None,
        attempt=order.attempt if order else None,
        state=finished.outcome,
        reward=finished.reward,
        advantage=curated[0].advantage if curated else None,
        selected=curated[0].selected if curated else [],
        source=curated[0].source if curated else "online",
        steps=finished.steps,
        version_min=finished.version_min,
        version_max=finished.version_max,
    )


def pooled(group_id: str, state: RunState) -> list[GroupMember]:
    """Return the members of a group that came from the experience pool, so that no order of it led to them."""
    if group_id not in state.groups:
        return []
    found = []
    for member in state.groups[group_id][0].members:
        finished = state.trajectories.get(member.trajectory_id)
        if finished is not None and finished.group_id != group_id:
            found.append(member_of(group_id, finished, state, None))
    return found


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of an optimizer step, briefly."""

    group_id: str
    task_id: str
    rewards: list[float]
    mean: float
    trained_actions: int
    version_min: int | None


class TrainStepView(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer step: its groups, what it imitated, the version it made, and who serves that since when.

    ``next_step`` and ``previous_step`` are null at the ends.
    """

    event: TrainedStep
    groups: list[StepGroup]
    imitated: list[str]
    published_ms: int | None
    served: dict[str, int]
    previous_step: int | None
    next_step: int | None


def train_step(number: int, state: RunState) -> TrainStepView:
    """Return an optimizer step; raise :class:`NotFound` if the run has none such."""
    event = state.trained.get(number)
    if event is None:
        raise NotFound(f"no optimizer step {number}: there are {len(state.trained)}")
    published = state.versions.get(event.version)
    served = {worker: first.since_ms for (version, worker), first in state.served.items() if version == event.version}
    return TrainStepView(
        event=event,
        groups=[step_group(group_id, state) for group_id in event.group_ids if group_id in state.groups],
        imitated=[*event.imitated, *(identity for update in event.sft_updates for identity in update)],
        published_ms=published.at_ms if published else None,
        served=served,
        previous_step=max((other for other in state.trained if other < number), default=None),
        next_step=min((other for other in state.trained if other > number), default=None),
    )


def step_group(group_id: str, state: RunState) -> StepGroup:
    """Return a curated group briefly."""
    curated, _ = state.groups[group_id]
    return StepGroup(
        group_id=group_id,
        task_id=curated.task_id,
        rewards=[member.reward for member in curated.members],
        mean=curated.mean,
        trained_actions=sum(len(member.selected) for member in curated.members),
        version_min=min((m.version_min for m in curated.members if m.version_min is not None), default=None),
    )


class MetricCurves(msgspec.Struct, frozen=True):
    """All optimizer steps: their numbers, versions and times, and each metric; null where a step lacks it."""

    steps: list[int]
    versions: list[int]
    at_ms: list[int]
    groups: list[int]
    metrics: dict[str, list[float | None]]


def train_steps(state: RunState) -> MetricCurves:
    """Return the metrics of all optimizer steps, in order."""
    events = [state.trained[number] for number in sorted(state.trained)]
    names = merged_names(event.metrics for event in events)
    return MetricCurves(
        steps=[event.train_step for event in events],
        versions=[event.version for event in events],
        at_ms=[event.at_ms for event in events],
        groups=[len(event.group_ids) for event in events],
        metrics={name: [event.metrics.get(name) for event in events] for name in names},
    )


class MetricTable(msgspec.Struct, frozen=True):
    """The known metrics in the order of the page, and the names of the most important ones."""

    metrics: list[TrainingMetric]
    headlines: list[str]


def metric_table() -> MetricTable:
    """Return the table of metrics."""
    return MetricTable(list(training_metrics.ALL), list(training_metrics.HEADLINES))


def merged_names(steps: Iterable[Iterable[str]]) -> list[str]:
    """Return the names of all steps in an order that is that of each: a new one comes after the one it followed."""
    order: list[str] = []
    known: set[str] = set()
    for names in steps:
        before = None
        for name in names:
            if name not in known:
                known.add(name)
                order.insert(0 if before is None else order.index(before) + 1, name)
            before = name
    return order


class TaskSummary(msgspec.Struct, kw_only=True):
    """A task in the table: finished training episodes and their mean reward, the whole run's and the newest ten's."""

    task_id: str
    episodes: int = 0
    rewarded: int = 0
    reward: float = 0.0
    recent: list[float] = []
    success_rate: float | None = None
    groups: int = 0


RECENT = 10


def tasks(state: RunState) -> list[TaskSummary]:
    """Return the tasks that were played in training, by name."""
    found: dict[str, TaskSummary] = {}
    for trajectory in state.finished.values():
        if trajectory.purpose != "train":
            continue
        summary = found.get(trajectory.task_id) or TaskSummary(task_id=trajectory.task_id, recent=[])
        found[trajectory.task_id] = summary
        summary.episodes += 1
        if trajectory.reward is not None:
            summary.rewarded += 1
            summary.reward += trajectory.reward
            summary.recent = [*summary.recent[-RECENT + 1 :], trajectory.reward]
    for curated, _ in state.groups.values():
        if curated.task_id in found:
            found[curated.task_id].groups += 1
    for summary in found.values():
        summary.success_rate = state.success_rates.get(summary.task_id)
    return sorted(found.values(), key=lambda summary: summary.task_id)


class BudgetDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A budget of a task that differs from the one before, why, and the finish that caused it (epoch milliseconds)."""

    at_ms: int | None
    rollouts: int
    max_steps: int
    reason: str
    trajectory_id: str


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task: its episodes over time (columns), the budgets that changed, and every group with its fate.

    ``purposes`` are train, eval or demonstration.
    """

    task_id: str
    row: TaskRow
    trajectory_ids: list[str]
    at_ms: list[int]
    rewards: list[float | None]
    outcomes: list[str]
    purposes: list[str]
    versions: list[int | None]
    budgets: list[BudgetDecision]
    groups: list[GroupHistory]


def task(task_id: str, state: RunState, config: Config) -> TaskView:
    """Return a task; raise :class:`NotFound` if nothing was decided or played of it."""
    history = TaskHistory(config, state, task_id)
    played = sorted((one for one in state.finished.values() if one.task_id == task_id), key=lambda one: one.finished_ms)
    if not played and task_id not in history.tasks:
        raise NotFound(f"no task {task_id!r} in this run")
    return TaskView(
        task_id=task_id,
        row=history.row(task_id),
        trajectory_ids=[one.trajectory_id for one in played],
        at_ms=[one.finished_ms for one in played],
        rewards=[one.reward for one in played],
        outcomes=[one.outcome for one in played],
        purposes=[one.purpose for one in played],
        versions=[one.version_max for one in played],
        budgets=budgets(task_id, state),
        groups=list(history.groups.get(task_id, {}).values()),
    )


def budgets(task_id: str, state: RunState) -> list[BudgetDecision]:
    """Return the budgets of a task that changed something, in order."""
    found: list[BudgetDecision] = []
    for _, budget in sorted(state.budgets.items()):
        if budget.task_id != task_id:
            continue
        if found and (found[-1].rollouts, found[-1].max_steps) == (budget.rollouts, budget.max_steps):
            continue
        cause = state.trajectories.get(budget.cause.trajectory_id)
        found.append(
            BudgetDecision(
                at_ms=cause.finished_ms if cause else None,
                rollouts=budget.rollouts,
                max_steps=budget.max_steps,
                reason=budget.reason,
                trajectory_id=budget.cause.trajectory_id,
            )
        )
    return found
