"""The dispatch agent: budgets, curated groups and weight versions in, single rollout orders out.

It starts with the first weight version. A fault is ordered again. Every input can make room, so every input ends in a
refill, and no clock is needed. When one more group may be opened is a rule of the mode (:func:`admits`):

``rollout-wise`` is DART's: a backlog of single rollouts, without waiting for a group or a batch. Only the staleness
bound limits it (:func:`dart_streams.curation.staleness.group_capacity`), counting curated groups that the newest
version has not consumed, and of the open ones as many as are expected to be curated: a group whose rewards are equal
takes no place in a step. The other two are the baselines:

``task-wise``: a group reserves as many slots as it has rollouts, until its slowest rollout has ended.
``coupled``: a whole batch is ordered at once; then nothing until all of its groups have ended, the trainer has taken
them, and every rollout worker serves the version that they made.
"""

import msgspec

from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.curation import difficulty, staleness
from dart_streams.curation.order_tracker import (
    Limits,
    OrderKey,
    OrderTracker,
    format_group_id,
    format_order_id,
    order_backlog,
    parse_order_id,
)
from dart_streams.curation.reducer import AgentProgress, Decision, InputRecord
from dart_streams.curation.task_scheduler import TaskScheduler, TaskState, in_phase, next_task
from topics import curated, rollout_orders
from topics.curated import CuratedGroup
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.transitions import IGNORED, classify_announcement
from topics.values import Sampling
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

NAME = "dispatch"


class OpenGroup(msgspec.Struct, frozen=True):
    """An open group: what its orders have in common."""

    task_id: str
    size: int
    max_steps: int


class DispatchState(msgspec.Struct):
    """Open groups, each task's state, and the trainer's progress.

    ``version`` is None before the first weights. ``open_orders`` have not ended; ``reserved`` is the size of all open
    groups: both are kept, because summing them for each group dominates the run time at ten thousand slots. ``curated``
    counts groups seen, of which ``counted`` are the newest numbers; ``consumed`` those that the trainer had taken at
    the newest version. ``closed`` are the last groups that ended. ``serving`` and ``batch_end`` are for the coupled
    mode: the version of each rollout worker, and the first group after the current batch.
    """

    progress: AgentProgress = msgspec.field(default_factory=AgentProgress)
    orders: OrderTracker = msgspec.field(default_factory=OrderTracker, name="book")
    scheduler: TaskScheduler = msgspec.field(default_factory=TaskScheduler, name="turns")
    tasks: dict[str, TaskState] = {}
    groups: dict[int, OpenGroup] = {}
    open_orders: int = 0
    reserved: int = 0
    next_group: int = 0
    version: int | None = None
    epoch: int = -1
    curated: int = 0
    counted: set[int] = set()
    closed: list[int] = []
    consumed: int = 0
    abandoned: int = 0
    serving: dict[str, int] = {}
    batch_end: int = 0


class Settings(msgspec.Struct, frozen=True):
    """What dispatch needs of the configuration; ``limits_of_tasks`` has the step limit of each training task."""

    config: Config
    sampling: Sampling
    limits: Limits
    limits_of_tasks: dict[str, int]
    task_ids: tuple[str, ...]

    @classmethod
    def of(cls, config: Config, tasks: TaskSet) -> "Settings":
        """Return the settings of a deployment."""
        return cls(
            config=config,
            sampling=config.sampling(),
            limits=Limits.of(config),
            limits_of_tasks={task.task_id: task.max_steps for task in tasks.train},
            task_ids=tuple(task.task_id for task in tasks.train),
        )


def apply(state: DispatchState, record: InputRecord, settings: Settings) -> tuple[DispatchState, list[Decision]]:
    """Apply one budget, curated group, weight version or worker's version, and refill the backlog."""
    event = record.event
    decisions: list[Decision] = []
    if isinstance(event, RolloutBudget):
        decisions = finish(state, event, settings)
    elif isinstance(event, CuratedGroup):
        count_curated(state, event.group_id, settings.limits.horizon)
    elif isinstance(event, WeightVersion):
        accept_weights(state, event)
    elif isinstance(event, WeightsServing):
        state.serving[event.worker_id] = event.version
    if state.version is not None and settings.task_ids:
        decisions += refill_backlog(state, settings)
    return state, decisions


def count_curated(state: DispatchState, group_id: str, horizon: int) -> None:
    """Count a curated group, once however many records it has; one that was never opened here is not counted."""
    key = parse_order_id(f"{group_id}/0/0")
    if key is None or not state.next_group - horizon < key.number < state.next_group or key.number in state.counted:
        return
    state.curated += 1
    state.counted.add(key.number)
    if len(state.counted) > 2 * horizon:
        state.counted = {number for number in state.counted if number > state.next_group - horizon}


def forget_unread(state: DispatchState, topic: str) -> None:
    """Count no curated group that is gone from a topic made anew: the trainer will never consume it."""
    if topic == curated.TOPIC.name:
        state.curated = min(state.curated, state.consumed)


def accept_weights(state: DispatchState, weights: WeightVersion) -> None:
    """Apply a weights record.

    ``consumed`` only grows within an epoch; a trainer that took over starts it anew from its checkpoint.
    """
    kind = classify_announcement(state.epoch, -1 if state.version is None else state.version, weights)
    if kind in IGNORED:
        return
    same_trainer, state.epoch = weights.epoch == state.epoch, weights.epoch
    if kind != "outdated":
        grows = kind == "repeated" and same_trainer
        state.consumed = max(state.consumed, weights.groups_consumed) if grows else weights.groups_consumed
        state.version = weights.version


def finish(state: DispatchState, budget: RolloutBudget, settings: Settings) -> list[Decision]:
    """Store a task's budget and apply the finish that caused it; a fault with attempts left is ordered again."""
    task = state.tasks.get(budget.task_id)
    if task is None and budget.task_id in settings.limits_of_tasks:
        task = state.tasks[budget.task_id] = TaskState()
    if task is not None:
        task.rollouts, task.max_steps = budget.rollouts, budget.max_steps
    key, outcome = parse_order_id(budget.cause.order_id), budget.cause.outcome
    if key is None or key.number not in state.groups:
        return []
    kind = state.orders.finish(key, outcome, settings.limits.attempts)
    if kind == "ordered":
        return [order_rollout(state, settings, key._replace(attempt=key.attempt + 1))]
    if kind in ("rewarded", "exhausted"):
        state.open_orders -= 1
        if task is not None and kind == "rewarded":
            task.add_finish(outcome == "success", difficulty.WINDOW)
        if key.number not in state.orders.open:
            close_group(state, key.number)
    return []


def close_group(state: DispatchState, number: int) -> None:
    """Remove a group that is no longer open."""
    group = state.groups.pop(number)
    state.closed = [*state.closed, number][-staleness.WINDOW :]
    state.reserved -= group.size
    state.tasks[group.task_id].open -= 1


def refill_backlog(state: DispatchState, settings: Settings) -> list[Decision]:
    """Open groups for as long as the mode's rule admits more."""
    decisions: list[Decision] = []
    while admits(state, settings.config):
        if settings.config.curation.dispatch.mode == "coupled" and state.next_group >= state.batch_end:
            state.batch_end = state.next_group + settings.config.trainer.groups_per_step
        decisions += open_group(state, settings)
    return decisions


def admits(state: DispatchState, config: Config) -> bool:
    """Say whether one more group may be opened now."""
    curation, batch = config.curation, config.trainer.groups_per_step
    if curation.dispatch.mode == "coupled":
        return state.next_group < state.batch_end or begins_batch(state, config.rollout.workers)
    unconsumed = max(0, state.curated - state.consumed)
    share = staleness.curated_share([*map(state.counted.__contains__, state.closed)])
    if not staleness.admits(len(state.groups), unconsumed, share, batch, curation.max_staleness):
        return False
    if curation.dispatch.mode == "task-wise":
        slots = config.env.workers * config.env.slots
        return not state.groups or state.reserved + curation.budget.base <= slots
    return state.open_orders < order_backlog(config)


def begins_batch(state: DispatchState, workers: int) -> bool:
    """Say whether the next batch may begin: the last one is trained on, and all workers serve the version it made.

    The groups agent publishes each group of a batch, also one without a learning signal. So the trainer has consumed as
    many groups as were ever opened exactly when the last batch is over.
    """
    serving = sum(version >= (state.version or 0) for version in state.serving.values())
    return state.next_group >= state.batch_end and state.consumed >= state.next_group and serving >= workers


def open_group(state: DispatchState, settings: Settings) -> list[Decision]:
    """Open the next group: choose its task, and order each of its samples."""
    number, curation = state.next_group, settings.config.curation
    eligible = in_phase(settings.task_ids, settings.limits_of_tasks, number, curation)
    task_id, probe = next_task(state.scheduler, state.tasks, eligible, number, curation)
    task, limit = state.tasks[task_id], settings.limits_of_tasks[task_id]
    size = 1 if probe else task.rollouts or curation.budget.base
    for old, open_samples in state.orders.open_up_to(number, size, settings.limits.horizon).items():
        state.abandoned += 1
        state.open_orders -= open_samples
        close_group(state, old)
    state.groups[number] = OpenGroup(task_id, size, min(task.max_steps or limit, limit))
    state.next_group += 1
    state.open_orders += size
    state.reserved += size
    task.open += 1
    task.last_group = number
    return [order_rollout(state, settings, OrderKey(number, sample, 0)) for sample in range(size)]


def order_rollout(state: DispatchState, settings: Settings, key: OrderKey) -> Decision:
    """Return the order of one rollout of an open group; its record has the order's own id."""
    group = state.groups[key.number]
    event = RolloutOrder(
        order_id=format_order_id(key),
        group_id=format_group_id(key.number),
        group_size=group.size,
        sample=key.sample,
        attempt=key.attempt,
        task_id=group.task_id,
        max_steps=group.max_steps,
        purpose="train",
        sampling=settings.sampling,
        after_version=state.version or 0,
    )
    return Decision(rollout_orders.TOPIC, event.order_id, event)
