"""The dispatch agent: reads budgets, curated groups and weight versions, and publishes single rollout orders.

It starts with the first weight version and orders faults again. Every input may make room, so each ends in a refill,
without a clock. The mode decides when another group may open (:func:`admits`):

``rollout-wise`` (DART): a backlog of single rollouts that waits for no group or batch. Only the staleness bound limits
it (:func:`dart_streams.curation.staleness.group_capacity`): the unconsumed curated groups, and the open groups that are
expected to be curated. The other modes are baselines:

``task-wise``: a group reserves a slot a rollout until its slowest rollout has ended. ``coupled``: a batch is ordered at
once; the next one waits until all its groups have ended, the trainer has consumed them, and every rollout worker serves
the resulting version.
"""

from functools import partial

import msgspec

from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.curation import difficulty, staleness
from dart_streams.curation.hooks import (
    Admission,
    DemonstrationFinish,
    ExplorationFinish,
    Memories,
    Own,
    Rules,
    TaskFinish,
)
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
from dart_streams.curation.task_scheduler import TaskScheduler, TaskState, next_task
from topics import curated, rollout_orders
from topics.curated import CuratedGroup
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import Guide, RolloutOrder
from topics.task_verdicts import TaskVerdict
from topics.transitions import IGNORED, classify_announcement
from topics.values import Sampling
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

NAME = "dispatch"
MOST_OF_BASE = 8
"""Rollouts of a group, in times of ``curation.budget.base``: a foreign budget would order 65,536 at once."""


class OpenGroup(msgspec.Struct, frozen=True):
    """The common part of an open group's orders; ``guides`` are those of its samples, one if all are equal."""

    task_id: str
    size: int
    max_steps: int
    guides: tuple[Guide | None, ...] = ()


class DispatchState(msgspec.Struct):
    """Open groups, each task's state, and the trainer's progress.

    ``version`` is None before the first weights. ``open_orders`` and ``reserved`` are the number of unfinished orders
    and the size of all open groups; summing them at each group would dominate the run time at ten thousand slots.
    ``curated`` counts curated groups (``counted`` has the newest numbers), ``consumed`` those consumed by the newest
    version, and ``closed`` lists recent closed groups. ``serving`` (version by worker) and ``batch_end`` serve the
    coupled mode. ``accepted`` has the step limits of proposed tasks that were accepted, in that order.
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
    memories: Memories = {}
    accepted: dict[str, int] = {}


class DispatchSettings(msgspec.Struct, frozen=True):
    """The settings of dispatch; ``limits_of_tasks`` has the step limit of each training task."""

    config: Config
    sampling: Sampling
    limits: Limits
    limits_of_tasks: dict[str, int]
    task_ids: tuple[str, ...]

    @classmethod
    def of(cls, config: Config, tasks: TaskSet) -> "DispatchSettings":
        """Return the settings of a deployment."""
        return cls(
            config=config,
            sampling=config.sampling(),
            limits=Limits.of(config),
            limits_of_tasks={task.task_id: task.max_steps for task in tasks.train},
            task_ids=tuple(task.task_id for task in tasks.train),
        )


def apply(
    state: DispatchState, record: InputRecord, settings: DispatchSettings, rules: Rules
) -> tuple[DispatchState, list[Decision]]:
    """Apply one budget, curated group, version, worker's version or verdict on a task, and refill the backlog."""
    event = record.event
    decisions: list[Decision] = []
    if isinstance(event, RolloutBudget):
        decisions = finish(state, event, settings, rules)
    elif isinstance(event, CuratedGroup):
        count_curated(state, event.group_id, settings.limits.horizon)
    elif isinstance(event, WeightVersion):
        accept_weights(state, event)
    elif isinstance(event, WeightsServing):
        state.serving[event.worker_id] = event.version
    elif isinstance(event, TaskVerdict) and event.accepted:
        state.accepted[event.task_id] = event.max_steps
    if state.version is not None and (settings.task_ids or state.accepted):
        decisions += refill_backlog(state, settings, rules)
    return state, decisions


def count_curated(state: DispatchState, group_id: str, horizon: int) -> None:
    """Count a curated group once; groups that were not opened here are ignored."""
    key = parse_order_id(f"{group_id}/0/0")
    if key is None or not state.next_group - horizon < key.number < state.next_group or key.number in state.counted:
        return
    state.curated += 1
    state.counted.add(key.number)
    if len(state.counted) > 2 * horizon:
        state.counted = {number for number in state.counted if number > state.next_group - horizon}


def forget_unread(state: DispatchState, topic: str) -> None:
    """Discount curated groups lost with a recreated topic, which the trainer will never consume."""
    if topic == curated.TOPIC.name:
        state.curated = min(state.curated, state.consumed)


def accept_weights(state: DispatchState, weights: WeightVersion) -> None:
    """Apply a weights record.

    ``consumed`` only grows within an epoch; a trainer that takes over restarts it from its checkpoint. No trainer has
    consumed more groups than were opened.
    """
    kind = classify_announcement(state.epoch, -1 if state.version is None else state.version, weights)
    if kind in IGNORED:
        return
    same_trainer, state.epoch = weights.epoch == state.epoch, weights.epoch
    if kind != "outdated":
        grows = kind == "repeated" and same_trainer
        consumed = min(weights.groups_consumed, state.next_group)
        state.consumed = max(state.consumed, consumed) if grows else consumed
        state.version = weights.version


def finish(state: DispatchState, budget: RolloutBudget, settings: DispatchSettings, rules: Rules) -> list[Decision]:
    """Store a task's budget and apply the finish behind it; order a fault with attempts left again."""
    task = state.tasks.get(budget.task_id)
    if task is None and (budget.task_id in settings.limits_of_tasks or budget.task_id in state.accepted):
        task = state.tasks[budget.task_id] = TaskState()
    if task is not None:
        task.rollouts = min(budget.rollouts, MOST_OF_BASE * settings.config.curation.budget.base)
        task.max_steps = budget.max_steps
    cause = budget.cause
    key, outcome, success = parse_order_id(cause.order_id), cause.outcome, cause.outcome == "success"
    if cause.starts:
        rules.remember(state.memories, ExplorationFinish(budget.task_id, cause.trajectory_id, cause.starts))
    elif key is None and success:
        rules.remember(state.memories, DemonstrationFinish(budget.task_id, cause.trajectory_id))
    if key is None or key.number not in state.groups:
        return []
    kind = state.orders.finish(key, outcome, settings.limits.attempts)
    if kind == "ordered":
        return [decision_of(order_rollout(state, settings, rules, key._replace(attempt=key.attempt + 1)))]
    if kind in ("rewarded", "exhausted"):
        state.open_orders -= 1
        if task is not None and kind == "rewarded" and not cause.guided:
            task.add_finish(success, difficulty.WINDOW)
        ended = key.number not in state.orders.open
        rewarded = kind == "rewarded"
        ending = TaskFinish(budget.task_id, key.number, success, ended, rewarded, cause.trajectory_id, cause.guided)
        rules.remember(state.memories, ending)
        if ended:
            close_group(state, key.number)
    return []


def close_group(state: DispatchState, number: int) -> None:
    """Remove a closed group."""
    group = state.groups.pop(number)
    state.closed = [*state.closed, number][-staleness.WINDOW :]
    state.reserved -= group.size
    state.tasks[group.task_id].open -= 1


def refill_backlog(state: DispatchState, settings: DispatchSettings, rules: Rules) -> list[Decision]:
    """Open groups while the mode admits more; at most one batch, whatever a record says was consumed."""
    decisions, before = list[Decision](), state.batch_end
    while admits(state, settings.config, rules) and not before < state.batch_end <= state.next_group:
        if settings.config.curation.dispatch.mode == "coupled" and state.next_group >= state.batch_end:
            state.batch_end = state.next_group + settings.config.trainer.groups_per_step
        decisions += open_group(state, settings, rules)
    return decisions


def admits(state: DispatchState, config: Config, rules: Rules) -> bool:
    """Return whether another group may be opened."""
    curation, batch = config.curation, config.trainer.groups_per_step
    if curation.dispatch.mode == "coupled":
        return state.next_group < state.batch_end or begins_batch(state, config.rollout.workers)
    admission = Admission(
        open_groups=len(state.groups),
        open_orders=state.open_orders,
        unconsumed=max(0, state.curated - state.consumed),
        curated_share=staleness.curated_share([*map(state.counted.__contains__, state.closed)]),
        groups_per_step=batch,
        max_staleness=curation.max_staleness,
        backlog=order_backlog(config),
    )
    if curation.dispatch.mode == "task-wise":
        slots = config.env.workers * config.env.slots
        fits = not state.groups or state.reserved + curation.budget.base <= slots
        return fits and is_fresh_enough(admission)
    return rules.admits(state.memories, admission)


def is_fresh_enough(admission: Admission) -> bool:
    """Return whether another group keeps the staleness bound."""
    open_groups, unconsumed, share = admission.open_groups, admission.unconsumed, admission.curated_share
    return staleness.admits(open_groups, unconsumed, share, admission.groups_per_step, admission.max_staleness)


def has_room(own: Own, admission: Admission) -> bool:
    """Return whether another group keeps the staleness bound, and the backlog of orders is not full."""
    return admission.open_orders < admission.backlog and is_fresh_enough(admission)


def begins_batch(state: DispatchState, workers: int) -> bool:
    """Return whether the next batch may begin: the last one is trained, and all workers serve the resulting version.

    The groups agent publishes every group of a batch, even without a learning signal. So the batch is over exactly when
    the trainer has consumed as many groups as were opened.
    """
    serving = sum(version >= (state.version or 0) for version in state.serving.values())
    return state.next_group >= state.batch_end and state.consumed >= state.next_group and serving >= workers


def open_group(state: DispatchState, settings: DispatchSettings, rules: Rules) -> list[Decision]:
    """Open the next group: choose its task and order its samples."""
    number, curation = state.next_group, settings.config.curation
    limits, task_ids = all_tasks(state, settings)
    eligible = rules.eligible_tasks(state.memories, number, limits, task_ids) or task_ids
    weight = partial(rules.task_weight, state.memories)
    task_id, probe = next_task(state.scheduler, state.tasks, eligible, number, curation, weight, limits)
    task = state.tasks[task_id]
    size = 1 if probe else task.rollouts or curation.budget.base
    for old, open_samples in state.orders.open_up_to(number, size, settings.limits.horizon).items():
        state.abandoned += 1
        state.open_orders -= open_samples
        close_group(state, old)
    state.groups[number] = OpenGroup(task_id, size, task.step_limit(limits[task_id]))
    state.next_group += 1
    state.open_orders += size
    state.reserved += size
    task.open += 1
    task.last_group = number
    orders = [order_rollout(state, settings, rules, OrderKey(number, sample, 0)) for sample in range(size)]
    guides = tuple(order.guide for order in orders)
    guides = guides[:1] if len(set(guides)) == 1 else guides
    state.groups[number] = msgspec.structs.replace(state.groups[number], guides=guides)
    return [decision_of(order) for order in orders]


def all_tasks(state: DispatchState, settings: DispatchSettings) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the step limits of all training tasks, and their ids: those of the task file, then accepted ones."""
    if not state.accepted:
        return settings.limits_of_tasks, settings.task_ids
    return settings.limits_of_tasks | state.accepted, (*settings.task_ids, *state.accepted)


def order_rollout(state: DispatchState, settings: DispatchSettings, rules: Rules, key: OrderKey) -> RolloutOrder:
    """Return the order of one rollout of an open group.

    A later attempt has the guide of the first one: rules may remember more by then.
    """
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
    event = rules.order(state.memories, event)
    if group.guides:
        event = msgspec.structs.replace(event, guide=group.guides[min(key.sample, len(group.guides) - 1)])
    rules.remember(state.memories, event)
    return event


def decision_of(order: RolloutOrder) -> Decision:
    """Return the decision to publish an order, under its id."""
    return Decision(rollout_orders.TOPIC, order.order_id, order)
