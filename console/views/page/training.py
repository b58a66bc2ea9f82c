"""Groups, optimizer steps and tasks for the page, from decisions to served weights. Pure."""

from operator import attrgetter

import msgspec

from console.runs.run_state import RunState
from console.runs.task_history import GroupHistory, TaskHistory, TaskRow
from console.views.page.episodes import curated_member
from console.views.page.source import NotFound
from dart_streams.config import Config
from topics.curated import Member
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.trained import TrainedStep
from topics.trajectories import Trajectory

EQUAL_WITHIN = 1e-9
"""Rewards that differ by less are equal: their advantages are 0."""
RECENT = 10
"""Newest episodes of a task whose rewards are listed."""


class GroupMember(msgspec.Struct, frozen=True):
    """A rollout of a group, null until ``finished`` or ``curated``; a member from the pool has no ``sample``."""

    trajectory_id: str
    sample: int | None
    attempt: int | None
    state: str
    finished: Trajectory | None
    curated: Member | None


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group: its rollouts, its fate and the reason for its size, and the optimizer steps that took it.

    ``equal`` means that all rewards are the same, so that advantages are 0. ``waiting`` counts rollouts to come.
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


def view_group(group_id: str, state: RunState, config: Config) -> GroupView:
    """Return a group; raise :class:`NotFound` for an unknown id."""
    curated, curated_ms = state.groups.get(group_id, (None, None))
    orders = [state.orders[order_id][0] for order_id in state.orders_of.get(group_id, ())]
    if curated is None and not orders:
        raise NotFound(f"no group {group_id!r} in this run")
    task_id = curated.task_id if curated else orders[0].task_id
    history = TaskHistory(config, state, task_id).groups.get(task_id, {}).get(group_id)
    members = [ordered_member(order, state) for order in sorted(orders, key=attrgetter("sample", "attempt"))]
    for member in curated.members if curated else ():
        finished = state.trajectories.get(member.trajectory_id)
        if finished is not None and finished.group_id != group_id:  # from the experience pool
            members.append(GroupMember(member.trajectory_id, None, None, finished.outcome, finished, member))
    rewarded = [(one.sample, one.finished.reward) for one in members if one.finished]
    rewards = [reward for _, reward in rewarded if reward is not None]
    settled = {sample for sample, reward in rewarded if reward is not None}
    size = max((order.group_size for order in orders), default=len(settled))
    return GroupView(
        group_id=group_id,
        task_id=task_id,
        fate=history.fate if history else "curated" if curated else "",
        why=history.why if history else "",
        curated_ms=curated_ms,
        mean=curated.mean if curated else None,
        std=curated.std if curated else None,
        equal=len(rewards) > 1 and max(rewards) - min(rewards) < EQUAL_WITHIN,
        waiting=0 if curated else max(0, size - len(settled)),
        members=members,
        train_steps=state.trained_with.get(group_id, []),
    )


def ordered_member(order: RolloutOrder, state: RunState) -> GroupMember:
    """Return the rollout of an order: ordered, running or finished."""
    finished = state.finished.get(order.order_id)
    running = next((key for key, seen in state.open.items() if seen.order.order_id == order.order_id), "")
    identity = finished.trajectory_id if finished else running
    word = finished.outcome if finished else "running" if running else "ordered"
    curated = curated_member(order.group_id, identity, state)
    return GroupMember(identity, order.sample, order.attempt, word, finished, curated)


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of an optimizer step; ``version_min`` is the oldest weight version that sampled it."""

    group_id: str
    task_id: str
    rewards: list[float]
    mean: float
    trained_actions: int
    version_min: int | None


class TrainStepView(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer step: groups, imitations, service of its version by worker, and its neighbors (null at the ends)."""

    event: TrainedStep
    groups: list[StepGroup]
    imitated: list[str]
    published_ms: int | None
    served: dict[str, int]
    previous_step: int | None
    next_step: int | None


def view_train_step(number: int, state: RunState) -> TrainStepView:
    """Return an optimizer step; raise :class:`NotFound` for an unknown number."""
    event = state.trained.get(number)
    if event is None:
        raise NotFound(f"no optimizer step {number}: there are {len(state.trained)}")
    published = state.versions.get(event.version)
    served = {worker: first.since_ms for (version, worker), first in state.served.items() if version == event.version}
    return TrainStepView(
        event=event,
        groups=[step_group(group_id, state) for group_id in event.group_ids if group_id in state.groups],
        imitated=event.past,
        published_ms=published.at_ms if published else None,
        served=served,
        previous_step=max((other for other in state.trained if other < number), default=None),
        next_step=min((other for other in state.trained if other > number), default=None),
    )


def step_group(group_id: str, state: RunState) -> StepGroup:
    """Return a curated group of an optimizer step."""
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


def metric_curves(state: RunState) -> MetricCurves:
    """Return the metrics of all optimizer steps in order."""
    events = [state.trained[number] for number in sorted(state.trained)]
    names = dict.fromkeys(name for event in events for name in event.metrics)
    return MetricCurves(
        steps=[event.train_step for event in events],
        versions=[event.version for event in events],
        at_ms=[event.at_ms for event in events],
        groups=[len(event.group_ids) for event in events],
        metrics={name: [event.metrics.get(name) for event in events] for name in names},
    )


class TaskSummary(msgspec.Struct, kw_only=True):
    """A task: training episodes, summed reward, newest rewards; ``success_rate`` is over the curator's window."""

    task_id: str
    episodes: int = 0
    rewarded: int = 0
    reward: float = 0.0
    recent: list[float] = []
    success_rate: float | None = None
    groups: int = 0


def summarize_tasks(state: RunState) -> list[TaskSummary]:
    """Return the tasks that were played in training, by name."""
    summaries: dict[str, TaskSummary] = {}
    for trajectory in state.finished.values():
        if trajectory.purpose != "train":
            continue
        summary = summaries.setdefault(trajectory.task_id, TaskSummary(task_id=trajectory.task_id))
        summary.episodes += 1
        if (reward := trajectory.own_reward) is not None:
            summary.rewarded += 1
            summary.reward += reward
            summary.recent = [*summary.recent[-RECENT + 1 :], reward]
    for curated, _ in state.groups.values():
        if curated.task_id in summaries:
            summaries[curated.task_id].groups += 1
    for summary in summaries.values():
        summary.success_rate = state.success_rates.get(summary.task_id)
    return [summary for _, summary in sorted(summaries.items())]


class BudgetDecision(msgspec.Struct, frozen=True):
    """A changed budget of a task, and the end of the trajectory that caused it (epoch milliseconds)."""

    at_ms: int | None
    budget: RolloutBudget


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task: episodes over time as columns, with their ``purposes``, changed budgets, and groups with their fates."""

    task_id: str
    row: TaskRow
    trajectory_ids: list[str]
    at_ms: list[int]
    rewards: list[float | None]
    purposes: list[str]
    budgets: list[BudgetDecision]
    groups: list[GroupHistory]


def view_task(task_id: str, state: RunState, config: Config) -> TaskView:
    """Return a task; raise :class:`NotFound` for one without episodes and decisions."""
    history = TaskHistory(config, state, task_id)
    played = sorted((one for one in state.finished.values() if one.task_id == task_id), key=lambda one: one.finished_ms)
    if not played and task_id not in history.tasks:
        raise NotFound(f"no task {task_id!r} in this run")
    return TaskView(
        task_id=task_id,
        row=history.row(task_id),
        trajectory_ids=[trajectory.trajectory_id for trajectory in played],
        at_ms=[trajectory.finished_ms for trajectory in played],
        rewards=[trajectory.reward for trajectory in played],
        purposes=[trajectory.purpose for trajectory in played],
        budgets=changed_budgets(task_id, state),
        groups=list(history.groups.get(task_id, {}).values()),
    )


def changed_budgets(task_id: str, state: RunState) -> list[BudgetDecision]:
    """Return the budgets of a task that differ from the one before, in order."""
    decisions: list[BudgetDecision] = []
    for _, budget in sorted(state.budgets.items()):
        last = decisions[-1].budget if decisions else None
        unchanged = last is not None and (last.rollouts, last.max_steps) == (budget.rollouts, budget.max_steps)
        if budget.task_id == task_id and not unchanged:
            cause = state.trajectories.get(budget.cause.trajectory_id)
            decisions.append(BudgetDecision(cause.finished_ms if cause else None, budget))
    return decisions
