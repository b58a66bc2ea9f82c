"""The dispatch agent: budgets, curated groups and weight versions in, single rollout orders out.

It starts with the first weight version. From then on it keeps a backlog of open orders and never waits for a group or a
batch: each finish makes room for the next. A fault is ordered again. It opens a group only while the staleness bound
admits one more (:func:`dart_streams.curation.staleness.capacity`), counting the groups that are open and those curated
that the newest version has not consumed; a group dropped for equal rewards is in neither.

Every input can make room, so every input ends in a refill, and no clock is needed.

That is its ``rollout-wise`` mode. :mod:`dart_streams.curation.admission` has the others; the coupled one also hears
what the rollout workers serve.
"""

import msgspec

from dart_streams.config import Config
from dart_streams.curation import admission, difficulty
from dart_streams.curation.admission import AdmissionLimits, AdmissionLoad
from dart_streams.curation.order_tracker import Limits, OrderTracker, group_name, order_name, place
from dart_streams.curation.reducer import AgentProgress, Decision, InputRecord
from dart_streams.curation.task_scheduler import TaskScheduler, TaskState, in_phase, next_task
from dart_streams.tasks import TaskSet
from topics import rollout_orders
from topics.curated import CuratedGroup
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.values import Sampling
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

NAME = "dispatch"


class Opened(msgspec.Struct, frozen=True):
    """An open group: what its orders say."""

    task_id: str
    size: int
    max_steps: int


class DispatchState(msgspec.Struct):
    """Open groups, what is known of each task, and how far the trainer is.

    ``version`` is None before the first weights. ``open_orders`` are still to come, ``reserved`` is the size of all
    open groups: both are kept, for with ten thousand slots adding them up for each group takes most of the time.
    ``curated`` counts groups seen, ``consumed`` those that the trainer had taken at the newest version. ``serving`` and
    ``batch_end`` are for the coupled mode: each rollout worker's version, and the first group that is not in the batch
    under way.
    """

    progress: AgentProgress = msgspec.field(default_factory=AgentProgress)
    book: OrderTracker = msgspec.field(default_factory=OrderTracker)
    turns: TaskScheduler = msgspec.field(default_factory=TaskScheduler)
    tasks: dict[str, TaskState] = {}
    groups: dict[int, Opened] = {}
    open_orders: int = 0
    reserved: int = 0
    next_group: int = 0
    version: int | None = None
    epoch: int = -1
    curated: int = 0
    consumed: int = 0
    abandoned: int = 0
    serving: dict[str, int] = {}
    batch_end: int = 0


class Settings(msgspec.Struct, frozen=True):
    """What dispatch needs of the configuration; ``limits_of_tasks`` has the step limit of each training task."""

    config: Config
    sampling: Sampling
    bounds: AdmissionLimits
    limits: Limits
    limits_of_tasks: dict[str, int]
    task_ids: tuple[str, ...]

    @classmethod
    def of(cls, config: Config, tasks: TaskSet) -> "Settings":
        """Return the settings of a deployment."""
        return cls(
            config=config,
            sampling=config.sampling(),
            bounds=AdmissionLimits.of(config),
            limits=Limits.of(config),
            limits_of_tasks={task.task_id: task.max_steps for task in tasks.train},
            task_ids=tuple(task.task_id for task in tasks.train),
        )


def apply(state: DispatchState, record: InputRecord, settings: Settings) -> tuple[DispatchState, list[Decision]]:
    """Take one budget, curated group, weight version or worker's version into account, and fill the backlog again."""
    event = record.event
    decisions: list[Decision] = []
    if isinstance(event, RolloutBudget):
        decisions = finish(state, event, settings)
    elif isinstance(event, CuratedGroup):
        state.curated += 1
    elif isinstance(event, WeightVersion):
        renew(state, event)
    elif isinstance(event, WeightsServing):
        state.serving[event.worker_id] = event.version
    if state.version is not None and settings.task_ids:
        decisions += refill(state, settings)
    return state, decisions


def renew(state: DispatchState, weights: WeightVersion) -> None:
    """Note a version. The newest may be told again, with more groups consumed or by a trainer that took over.

    One of a smaller epoch comes from a fenced trainer and is ignored.
    """
    newest = -1 if state.version is None else state.version
    if weights.epoch < state.epoch or weights.version < newest:
        return
    same = (weights.epoch, weights.version) == (state.epoch, state.version)
    state.consumed = max(state.consumed, weights.groups_consumed) if same else weights.groups_consumed
    state.version, state.epoch = weights.version, weights.epoch


def finish(state: DispatchState, budget: RolloutBudget, settings: Settings) -> list[Decision]:
    """Note a task's budget, and the finish behind it; order it again if it was a fault that may be tried again."""
    known = state.tasks.get(budget.task_id)
    if known is None and budget.task_id in settings.limits_of_tasks:
        known = state.tasks[budget.task_id] = TaskState()
    if known is not None:
        known.rollouts, known.max_steps = budget.rollouts, budget.max_steps
    order = place(budget.cause.order_id)
    if order is None or order.number not in state.groups:
        return []
    opened = state.groups[order.number]
    ending = state.book.end(order, budget.cause.outcome, settings.limits.attempts)
    if ending == "again":
        return [ordered(state, settings, opened, order.number, order.sample, order.attempt + 1)]
    if ending in ("rewarded", "given up"):
        state.open_orders -= 1
        if known is not None and ending == "rewarded":
            known.note(budget.cause.outcome == "success", difficulty.WINDOW)
        if order.number not in state.book.open:
            close(state, order.number)
    return []


def close(state: DispatchState, number: int) -> None:
    """Forget a group that is no longer open."""
    opened = state.groups.pop(number)
    state.reserved -= opened.size
    state.tasks[opened.task_id].open -= 1


def refill(state: DispatchState, settings: Settings) -> list[Decision]:
    """Open groups for as long as the mode's rule admits more."""
    decisions: list[Decision] = []
    while admission.admits(load_of(state, settings.bounds), settings.bounds):
        if settings.bounds.mode == "coupled" and state.next_group >= state.batch_end:
            state.batch_end = state.next_group + settings.bounds.batch
        decisions += open_group(state, settings)
    return decisions


def load_of(state: DispatchState, bounds: AdmissionLimits) -> AdmissionLoad:
    """Return what is under way."""
    return AdmissionLoad(
        opened=state.next_group,
        open=len(state.groups),
        unconsumed=max(0, state.curated - state.consumed),
        consumed=state.consumed,
        orders=state.open_orders,
        reserved=state.reserved,
        serving=sum(version >= (state.version or 0) for version in state.serving.values()),
        batch_end=state.batch_end,
    )


def open_group(state: DispatchState, settings: Settings) -> list[Decision]:
    """Open the next group: choose its task, and order each of its samples."""
    number, curation = state.next_group, settings.config.curation
    taking_part = in_phase(settings.task_ids, settings.limits_of_tasks, number, curation)
    task_id, probe = next_task(state.turns, state.tasks, taking_part, number, curation)
    line, limit = state.tasks[task_id], settings.limits_of_tasks[task_id]
    size = 1 if probe else line.rollouts or curation.budget.base
    opened = Opened(task_id, size, min(line.max_steps or limit, limit))
    for old, missing in state.book.open_up_to(number, size, settings.limits.horizon).items():
        give_up(state, old, missing)
    state.groups[number] = opened
    state.next_group += 1
    state.open_orders += size
    state.reserved += size
    line.open += 1
    line.last_group = number
    return [ordered(state, settings, opened, number, sample, 0) for sample in range(size)]


def give_up(state: DispatchState, number: int, missing: int) -> None:
    """Count out a group so far behind that the groups agent has given it up as well, and its orders still to come."""
    state.abandoned += 1
    state.open_orders -= missing
    close(state, number)


def ordered(
    state: DispatchState, settings: Settings, opened: Opened, number: int, sample: int, attempt: int
) -> Decision:
    """Return the order of one rollout; its record has the order's own id."""
    order = RolloutOrder(
        order_id=order_name(number, sample, attempt),
        group_id=group_name(number),
        group_size=opened.size,
        sample=sample,
        attempt=attempt,
        task_id=opened.task_id,
        max_steps=opened.max_steps,
        purpose="train",
        sampling=settings.sampling,
        after_version=state.version or 0,
    )
    return Decision(rollout_orders.TOPIC, order.order_id, order)
