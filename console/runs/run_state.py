"""The state of a run, folded from its topics for display, report, monitor, trace and tasks. Pure.

The fold depends only on the order within a partition, never between topics. Repeated records change nothing.
"""

import contextlib
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from console.runs.fault_kinds import EnvFaults, FaultKinds
from console.runs.log_liveness import LogLiveness
from console.runs.run_log import LogRecord, ObservationHeader, RecordMetadata, ResponseHeader
from console.runs.time_slices import SLICE_MS, TimeSlices, split_span
from console.runs.topic_activity import ActivityState
from dart_streams.config.text import MALFORMED
from topics.curated import CuratedGroup
from topics.curation_log import Applied, Source
from topics.feedback import Feedback
from topics.observations import Observation
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.task_difficulty import TaskDifficulty
from topics.task_verdicts import TaskVerdict
from topics.tasks import ProposedTask
from topics.trained import TrainedStep
from topics.trajectories import Trajectory
from topics.transitions import IGNORED, classify_announcement, is_ignored
from topics.values import BlobRef, Purpose
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

K = TypeVar("K")
DECODE_OBSERVATION = msgspec.json.Decoder(Observation).decode
LAST_SCREENS = 1024
"""Ended episodes, the newest ones, whose last observation is kept for display."""
RECENT_EPISODES = 200
"""Newest training episodes over which ``recent_success`` is the mean."""


class PublishedVersion(msgspec.Struct, frozen=True):
    """The newest announcement of a weight version, which the trainer repeats, and the time of the first."""

    event: WeightVersion
    at_ms: int


class WeightSwitch(msgspec.Struct, frozen=True):
    """A worker's switch to a version, for which generation paused ``pause_ms``."""

    worker_id: str
    version: int
    at_ms: int
    pause_ms: float


class Retention(NamedTuple):
    """Numbers of newest items that a state keeps."""

    orders: int
    """Finished training orders, with their trajectories."""
    groups: int
    """Groups, optimizer steps, and versions and switches of weights."""


class RunState(ActivityState):
    """The fold's state, which only :meth:`apply` changes.

    With ``keep_steps`` it has every observation (bytes and header), response and place of a trajectory: most of a log.
    ``keep`` bounds it. Older items leave counts and slices; ``is_whole`` is False then, and a repeat counts as new.
    """

    def __init__(self, *, keep_steps: bool = False, keep: Retention | None = None) -> None:
        super().__init__()
        self.keep_steps = keep_steps
        self.train_finished = self.groups_curated = 0
        self.keep_orders = keep.orders if keep else None
        self.keep_groups = keep.groups if keep else None
        self.is_whole = True
        # Orders, their reasons, proposed tasks without pages, and feedback; ``closed`` are finished training orders.
        self.closed: dict[str, None] = {}
        self.orders: dict[str, tuple[RolloutOrder, RecordMetadata]] = {}
        self.success_rates: dict[str, float | None] = {}
        self.budgets: dict[tuple[int, int], RolloutBudget] = {}
        self.curation: dict[tuple[str, Source], Applied] = {}
        self.proposed: dict[str, ProposedTask] = {}
        self.verdicts: dict[str, TaskVerdict] = {}
        self.feedback: dict[str, Feedback] = {}
        self.feedback_on: defaultdict[str, list[str]] = defaultdict(list)
        self.orders_of: defaultdict[str, set[str]] = defaultdict(set)
        # Episodes. Of open ones, ``open`` has the first observation, ``newest`` the newest, ``answered`` the newest
        # answered step (if responses are read), and ``screens`` the newest screen. ``finished`` has each order's first
        # trajectory, ``lost`` counts orders whose first one is lost, and ``unrecorded`` has the ends of those without.
        self.open: dict[str, ObservationHeader] = {}
        self.newest: dict[str, ObservationHeader] = {}
        self.answered: dict[str, int] = {}
        self.last_screens: dict[str, ObservationHeader] = {}
        self.screens: dict[str, BlobRef] = {}
        self.ended: dict[str, None] = {}
        self.unrecorded: dict[str, RecordMetadata] = {}
        self.env_faults: dict[tuple[str, str], EnvFaults] = {}
        self.env_fault_kinds, self.policy_fault_kinds = FaultKinds(), FaultKinds()
        self.newest_step: dict[str, int] = {}
        self.steps = self.lost = 0
        self.trajectories: dict[str, Trajectory] = {}
        self.places: dict[str, RecordMetadata] = {}
        self.finished: dict[str, Trajectory] = {}
        self.slices = TimeSlices()
        self.observations: defaultdict[str, dict[int, LogRecord]] = defaultdict(dict)
        self.screenshots: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        self.responses: dict[tuple[str, str], LogRecord] = {}
        # Groups and optimizer steps: ``groups_of`` and ``imitated_by`` are by trajectory, ``trained_with`` by group.
        self.groups: dict[str, tuple[CuratedGroup, int]] = {}
        self.groups_of: defaultdict[str, list[str]] = defaultdict(list)
        self.trained: dict[int, TrainedStep] = {}
        self.trained_epoch = -1
        self.trained_with: defaultdict[str, list[int]] = defaultdict(list)
        self.imitated_by: defaultdict[str, list[int]] = defaultdict(list)
        # Weight versions; ``served`` has each worker's first announcement of each. Digests are all announced ones.
        self.versions: dict[int, PublishedVersion] = {}
        self.published_digests: defaultdict[int, set[str]] = defaultdict(set)
        self.served_digests: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
        self.epochs: dict[str, int] = {}
        self.highest_version = -1
        self.serving: dict[str, WeightsServing] = {}
        self.liveness = LogLiveness()
        self.served: dict[tuple[int, str], WeightsServing] = {}
        self.switches: deque[WeightSwitch] = deque(maxlen=self.keep_groups)
        self.failed_loads: set[tuple[str, int]] = set()

    def _forget_oldest(self, items: dict[K, Any], keep: int | None, forget: Callable[[K], None]) -> None:
        while keep is not None and len(items) > keep:
            self.is_whole = False
            forget(next(iter(items)))

    def fold(self, records: Iterable[LogRecord]) -> Self:
        """Apply records, and return this state."""
        for record in records:
            self.apply(*record)
        return self

    def apply(self, metadata: RecordMetadata, event: Any, value: bytes = b"") -> str:
        """Apply one record, and return its sender, if known; an event of None, or of another kind, is activity."""
        if reducer := REDUCERS.get(type(event)):
            reducer(self, event, LogRecord(metadata, event, value))
        return super().apply(metadata, event)

    def _order(self, event: RolloutOrder, record: LogRecord) -> None:
        if event.order_id not in self.orders:
            self.orders[event.order_id] = (event, record.metadata)
            self.orders_of[event.group_id].add(event.order_id)
            if event.order_id in self.finished:
                self._note_finished(event.order_id, event.purpose)

    def _observation(self, event: ObservationHeader, record: LogRecord) -> None:
        identity = event.trajectory_id
        if event.step > self.newest_step.get(identity, -1):
            self.newest_step[identity] = event.step
            if event.step:
                self._step(event)
        if event.screenshot is not None and identity not in self.ended:
            self.screens[identity] = event.screenshot
        if event.end is not None:
            self._end(event, record.metadata)
        elif identity not in self.ended and event.order.order_id not in self.finished:
            self.open.setdefault(identity, event)
            if self.newest_step[identity] == event.step:
                self.newest[identity] = event
        if self.keep_steps and event.step not in self.observations[identity]:
            self.observations[identity][event.step] = record
            if event.screenshot is not None:
                self.screenshots[event.screenshot.sha256].append((identity, event.step))

    def _step(self, event: ObservationHeader) -> None:
        """Count an executed action and its duration."""
        self.steps += 1
        self.slices[event.at_ms // SLICE_MS].steps += 1
        if event.taken is not None:
            for number, acting_ms in split_span(event.at_ms - round(event.taken.execute_ms), event.at_ms):
                self.slices[number].acting_ms += acting_ms

    def _end(self, event: ObservationHeader, place: RecordMetadata) -> None:
        """Keep an episode's last observation, with its last screen."""
        identity = event.trajectory_id
        if event.order.order_id not in self.finished:
            self.unrecorded.setdefault(event.order.order_id, place)
        if identity not in self.ended:
            screen = self.screens.pop(identity, None)
            self.last_screens[identity] = msgspec.structs.replace(event, screenshot=screen)
            if len(self.last_screens) > LAST_SCREENS:
                del self.last_screens[next(iter(self.last_screens))]
            if event.end is not None and event.end.kind == "env_error":
                known = self.env_faults.get(where := (event.order.task_id, event.env_host), EnvFaults(0, ""))
                self.env_faults[where] = EnvFaults(known.episodes + 1, event.end.reason)
                self.env_fault_kinds.add(event.end.reason)
            elif event.end is not None and event.end.kind == "policy_error":
                self.policy_fault_kinds.add(event.end.reason)
            self.ended[identity] = None
            self._forget_oldest(self.ended, self.keep_orders, self._forget_episode)
        self._close(identity)

    def _close(self, identity: str) -> None:
        """Drop the state of an open episode."""
        self.open.pop(identity, None)
        self.newest.pop(identity, None)
        self.answered.pop(identity, None)

    def _response(self, event: ResponseHeader, record: LogRecord) -> None:
        if event.alive:
            return
        if self.keep_steps:
            self.responses.setdefault((event.worker_id, event.request_id), record._replace(value=b""))
        identity, _, rest = event.request_id.partition("/")
        known = identity in self.ended or identity in self.trajectories
        if not known and (step := rest.partition("/")[0]).isdecimal():
            self.answered[identity] = max(int(step), self.answered.get(identity, -1))

    def _trajectory(self, event: Trajectory, record: LogRecord) -> None:
        """Count a trajectory, unless its order has one."""
        self.trajectories.setdefault(event.trajectory_id, event)
        if self.keep_steps:
            self.places.setdefault(event.trajectory_id, record.metadata)
        self.answered.pop(event.trajectory_id, None)
        if event.order_id not in self.finished:
            self.finished[event.order_id] = event
            self.unrecorded.pop(event.order_id, None)
            self.lost += event.outcome == "lost"
            for abandoned in [key for key, episode in self.open.items() if episode.order.order_id == event.order_id]:
                self._close(abandoned)
            for number, busy_ms in split_span(event.started_ms, event.finished_ms):
                self.slices[number].busy_ms += busy_ms
            if event.purpose == "train":
                part = self.slices[event.finished_ms // SLICE_MS]
                part.episodes += 1
                part.rewarded += event.own_reward is not None
                part.reward += event.own_reward or 0.0
                self.train_finished += 1
            if event.order_id in self.orders:
                self._note_finished(event.order_id, event.purpose)

    def _group(self, event: CuratedGroup, record: LogRecord) -> None:
        if event.group_id not in self.groups:
            self.groups[event.group_id] = (event, record.metadata.at_ms)
            for member in event.members:
                self.groups_of[member.trajectory_id].append(event.group_id)
            self.groups_curated += 1
            self._forget_oldest(self.groups, self.keep_groups, self._forget_group)

    def _trained(self, event: TrainedStep, _: LogRecord) -> None:
        """Note a step of the newest trainer; steps of a fenced one do not count."""
        known = self.trained.get(event.train_step)
        if is_ignored(event.epoch, self.trained_epoch) or (known is not None and known.epoch == event.epoch):
            return
        self.trained_epoch = event.epoch
        if known is not None:
            self._index_step(known, list.remove)
        self.trained[event.train_step] = event
        self._index_step(event, list.append)
        self._forget_oldest(self.trained, self.keep_groups, self._forget_step)

    def _index_step(self, step: TrainedStep, change: Callable[[list[int], int], None]) -> None:
        for index, names in ((self.trained_with, [*step.group_ids, *step.feedback]), (self.imitated_by, step.past)):
            for name in names:
                change(index[name], step.train_step)
                if not index[name]:
                    del index[name]

    def _version(self, event: WeightVersion, record: LogRecord) -> None:
        if classify_announcement(self.epochs.get(event.model_id, -1), self.highest_version, event) in IGNORED:
            return
        self.highest_version = max(self.highest_version, event.version)
        self.epochs[event.model_id] = event.epoch
        known = self.versions.get(event.version)
        self.published_digests[event.version].add(event.sha256)
        self.versions[event.version] = PublishedVersion(event, known.at_ms if known else record.metadata.at_ms)
        self._forget_oldest(self.versions, self.keep_groups, self._forget_version)

    def _serving(self, event: WeightsServing, _: LogRecord) -> None:
        """Note a worker's version; its newest record is the last of the log, whatever its clock says."""
        first = (event.version, event.worker_id) not in self.served
        self.served.setdefault((event.version, event.worker_id), event)
        if event.sha256 is not msgspec.UNSET:
            self.served_digests[event.version, event.worker_id].add(event.sha256)
        before = self.serving.get(event.worker_id)
        self.serving[event.worker_id] = event
        self.liveness.note(event.worker_id)
        if event.failed_version is not None:
            self.failed_loads.add((event.worker_id, event.failed_version))
        if first and before is not None and event.version > before.version and event.pause_ms is not None:
            self.is_whole &= len(self.switches) != self.switches.maxlen
            self.switches.append(WeightSwitch(event.worker_id, event.version, event.since_ms, event.pause_ms))

    def _difficulty(self, event: TaskDifficulty, _: LogRecord) -> None:
        self.success_rates[event.task_id] = event.success_rate

    def _budget(self, event: RolloutBudget, record: LogRecord) -> None:
        self.budgets[record.metadata.partition, record.metadata.offset] = event

    def _proposed(self, event: ProposedTask, _: LogRecord) -> None:
        self.proposed.setdefault(event.task_id, msgspec.structs.replace(event, document="", solution=[]))

    def _verdict(self, event: TaskVerdict, _: LogRecord) -> None:
        self.verdicts[event.task_id] = event

    def _feedback(self, event: Feedback, _: LogRecord) -> None:
        if event.feedback_id not in self.feedback:
            self.feedback[event.feedback_id] = event
            self.feedback_on[event.trajectory_id].append(event.feedback_id)

    def _applied(self, event: Applied, _: LogRecord) -> None:
        self.curation.setdefault((event.agent, event.source), event)

    def _note_finished(self, order_id: str, purpose: Purpose) -> None:
        """Note an order with a record and a trajectory; either topic may be read first."""
        if purpose == "train":
            self.closed[order_id] = None
            self._forget_oldest(self.closed, self.keep_orders, self._forget_order)

    def _forget_order(self, order_id: str) -> None:
        del self.closed[order_id]
        trajectory = self.finished.pop(order_id)
        self.trajectories.pop(trajectory.trajectory_id, None)
        self.orders.pop(order_id, None)
        siblings = self.orders_of[trajectory.group_id]
        siblings.discard(order_id)
        if not siblings:
            del self.orders_of[trajectory.group_id]

    def _forget_episode(self, identity: str) -> None:
        del self.ended[identity]
        self.newest_step.pop(identity, None)

    def _forget_group(self, group_id: str) -> None:
        group, _ = self.groups.pop(group_id)
        for member in group.members:
            of_member = self.groups_of[member.trajectory_id]
            of_member.remove(group_id)
            if not of_member:
                del self.groups_of[member.trajectory_id]

    def _forget_step(self, number: int) -> None:
        self._index_step(self.trained.pop(number), list.remove)

    def _forget_version(self, version: int) -> None:
        del self.versions[version]
        self.published_digests.pop(version, None)
        for worker_id in self.serving:
            self.served.pop((version, worker_id), None)
            self.served_digests.pop((version, worker_id), None)

    @property
    def recent_success(self) -> float | None:
        """Mean reward of the newest training episodes, None without any."""
        train = (one for one in reversed(self.finished.values()) if one.purpose == "train")
        rewards = [one.own_reward for one in itertools.islice(train, RECENT_EPISODES) if one.own_reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    @property
    def newest_version(self) -> int | None:
        """Newest published version."""
        return max(self.versions, default=None)

    @property
    def served_version(self) -> int | None:
        """Newest version that every worker serves or has passed, without those that are gone."""
        return self.served_by(self.liveness.missed)

    def served_by(self, workers: Collection[str]) -> int | None:
        """Return the newest version that each of these workers serves or has passed, None without announcements."""
        return min((self.serving[name].version for name in workers if name in self.serving), default=None)

    @property
    def groups_consumed(self) -> int:
        """Number of curated groups that the trainer has taken."""
        newest = self.newest_version
        return self.versions[newest].event.groups_consumed if newest is not None else 0

    def observation(self, trajectory_id: str, step: int) -> Observation | None:
        """Return a kept observation, decoded in full; None without one, or where more than its header is wrong."""
        record = self.observations.get(trajectory_id, {}).get(step)
        with contextlib.suppress(*MALFORMED):
            return DECODE_OBSERVATION(record.value) if record is not None else None
        return None


REDUCERS: dict[type, Callable[..., None]] = {
    RolloutOrder: RunState._order,
    ObservationHeader: RunState._observation,
    ResponseHeader: RunState._response,
    Trajectory: RunState._trajectory,
    CuratedGroup: RunState._group,
    TrainedStep: RunState._trained,
    WeightVersion: RunState._version,
    WeightsServing: RunState._serving,
    TaskDifficulty: RunState._difficulty,
    RolloutBudget: RunState._budget,
    ProposedTask: RunState._proposed,
    TaskVerdict: RunState._verdict,
    Feedback: RunState._feedback,
    Applied: RunState._applied,
}
