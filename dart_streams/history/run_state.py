"""What is known of a run, folded from its topics: no clock, no I/O.

Topics are read side by side, so the fold depends on the order within a topic's partition only, never between topics.
Repeats (delivery is at least once) change nothing.
"""

from collections import defaultdict
from typing import Any

import msgspec

from topics import curated, observations, rollout_orders, trajectories, weights, weights_serving
from topics.curated import CuratedGroup
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from topics.values import OutcomeKind, Purpose
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

SLICE_MS = 5_000
"""The width of a time slice of the curves."""


class RecordMetadata(msgspec.Struct, frozen=True):
    """Where a record lies, and when it was written (epoch milliseconds)."""

    topic: str
    partition: int
    offset: int
    at_ms: int


class SeenOrder(msgspec.Struct, frozen=True):
    """The part of an observation's order that progress needs."""

    order_id: str
    purpose: Purpose


class SeenEnd(msgspec.Struct, frozen=True):
    """The part of an observation's end that progress needs."""

    kind: OutcomeKind


class SeenObservation(msgspec.Struct, frozen=True):
    """The part of an observation that progress needs: decoding skips tokens and log-probabilities."""

    trajectory_id: str
    order: SeenOrder
    step: int
    end: SeenEnd | None
    env_host: str
    at_ms: int


class SeenReply(msgspec.Struct, frozen=True):
    """The part of a reply that tells who sent it."""

    worker_id: str


class TopicActivity(msgspec.Struct, frozen=True):
    """How many records a topic had, and the newest: when, and from whom."""

    records: int = 0
    at_ms: int = 0
    sender: str = ""


class OpenEpisode(msgspec.Struct):
    """An episode under way."""

    order_id: str
    purpose: Purpose
    started_ms: int


class TimeSlice(msgspec.Struct):
    """Sums over one time slice; ``busy_ms`` is slot time with an episode under way, of any purpose."""

    steps: int = 0
    episodes: int = 0
    rewarded: int = 0
    reward: float = 0.0
    busy_ms: float = 0.0


class PublishedVersion(msgspec.Struct, frozen=True):
    """A published weight version: the newest announcement of it, and the time of the first.

    The trainer repeats an announcement to tell of groups it has dropped.
    """

    event: WeightVersion
    at_ms: int


class WeightSwitch(msgspec.Struct, frozen=True):
    """A worker took up a version in place; generation stood still for ``pause_ms``."""

    worker_id: str
    version: int
    at_ms: int
    pause_ms: float


class RunState:
    """The fold's state. :meth:`apply` is its only way to change."""

    def __init__(self) -> None:
        self.heard: dict[str, TopicActivity] = {}
        self.orders: dict[str, tuple[RolloutOrder, RecordMetadata]] = {}
        self.finished: dict[str, Trajectory] = {}
        self.open: dict[str, OpenEpisode] = {}
        self.ended: set[str] = set()
        self.seen_steps: dict[str, int] = {}
        self.slices: defaultdict[int, TimeSlice] = defaultdict(TimeSlice)
        self.groups: dict[str, tuple[CuratedGroup, int]] = {}
        self.versions: dict[int, PublishedVersion] = {}
        self.serving: dict[str, WeightsServing] = {}
        self.switches: list[WeightSwitch] = []
        self.failed_loads: set[tuple[str, int]] = set()
        self.steps = 0
        self.curated_staleness: list[int] = []

    def apply(self, place: RecordMetadata, event: Any) -> None:
        """Take one record in."""
        match event:
            case SeenObservation():
                sender = event.env_host
                self.observe(event)
            case RolloutOrder():
                sender = "dispatch" if event.purpose == "train" else event.purpose
                self.orders.setdefault(event.order_id, (event, place))
            case Trajectory():
                sender = "recorder"
                self.finish(event)
            case CuratedGroup():
                sender = "curator"
                self.curate(event, place.at_ms)
            case WeightVersion():
                sender = f"trainer epoch {event.epoch}"
                known = self.versions.get(event.version)
                self.versions[event.version] = PublishedVersion(event, known.at_ms if known else place.at_ms)
            case WeightsServing():
                sender = event.worker_id
                self.serve(event)
            case SeenReply():
                sender = event.worker_id
            case _:
                sender = ""
        self.hear(place, sender)

    def hear(self, place: RecordMetadata, sender: str) -> None:
        """Note that a topic had a record."""
        before = self.heard.get(place.topic, TopicActivity())
        newest = place.at_ms >= before.at_ms
        self.heard[place.topic] = TopicActivity(
            before.records + 1, max(place.at_ms, before.at_ms), sender if newest else before.sender
        )

    def observe(self, event: SeenObservation) -> None:
        """Follow an episode."""
        identity = event.trajectory_id
        if event.step > self.seen_steps.get(identity, -1):
            self.seen_steps[identity] = event.step
            if event.step:
                self.steps += 1
                self.slices[event.at_ms // SLICE_MS].steps += 1
        if event.end is not None:
            self.ended.add(identity)
            self.open.pop(identity, None)
        elif identity not in self.ended and identity not in self.open and event.order.order_id not in self.finished:
            self.open[identity] = OpenEpisode(event.order.order_id, event.order.purpose, event.at_ms)

    def finish(self, event: Trajectory) -> None:
        """Count a finished trajectory; a second finish of its order counts for nothing."""
        if event.order_id in self.finished:
            return
        self.finished[event.order_id] = event
        for abandoned in [key for key, episode in self.open.items() if episode.order_id == event.order_id]:
            del self.open[abandoned]
        for number, busy_ms in overlaps(event.started_ms, event.finished_ms):
            self.slices[number].busy_ms += busy_ms
        if event.purpose == "train":
            part = self.slices[event.finished_ms // SLICE_MS]
            part.episodes += 1
            if event.reward is not None:
                part.rewarded += 1
                part.reward += event.reward

    def curate(self, event: CuratedGroup, at_ms: int) -> None:
        """Count a curated group, and how old its members were when it was complete."""
        if event.group_id in self.groups:
            return
        self.groups[event.group_id] = (event, at_ms)
        newest = max((v for v, version in self.versions.items() if version.at_ms <= at_ms), default=None)
        if newest is not None:
            versions = [m.version_min for m in event.members if m.version_min is not None and m.source == "online"]
            self.curated_staleness += [max(0, newest - version) for version in versions]

    def serve(self, event: WeightsServing) -> None:
        """Follow which version each worker serves."""
        before = self.serving.get(event.worker_id)
        if before is not None and before.alive_ms > event.alive_ms:
            return
        self.serving[event.worker_id] = event
        if event.failed_version is not None:
            self.failed_loads.add((event.worker_id, event.failed_version))
        if before is not None and event.version > before.version and event.pause_ms is not None:
            self.switches.append(WeightSwitch(event.worker_id, event.version, event.since_ms, event.pause_ms))

    @property
    def newest_version(self) -> int | None:
        """The newest published version."""
        return max(self.versions, default=None)

    @property
    def served_version(self) -> int | None:
        """The newest version that every known worker serves or has passed."""
        return min((worker.version for worker in self.serving.values()), default=None)

    @property
    def groups_consumed(self) -> int:
        """Curated groups the trainer has taken."""
        newest = self.newest_version
        return self.versions[newest].event.groups_consumed if newest is not None else 0

    def unfinished(self, purpose: Purpose | None = None) -> list[RolloutOrder]:
        """Return the orders that no trajectory has finished yet."""
        return [
            order
            for order_id, (order, _) in self.orders.items()
            if order_id not in self.finished and purpose in (None, order.purpose)
        ]

    def finished_count(self, purpose: Purpose) -> int:
        """Count finished orders of one purpose."""
        return sum(trajectory.purpose == purpose for trajectory in self.finished.values())


FOLLOWED = (
    rollout_orders.TOPIC,
    observations.TOPIC,
    trajectories.TOPIC,
    curated.TOPIC,
    weights.TOPIC,
    weights_serving.TOPIC,
)
"""The topics that progress is folded from."""


def overlaps(start_ms: int, end_ms: int) -> list[tuple[int, float]]:
    """Split a span of time over the slices it touches: (slice number, milliseconds in it)."""
    return [
        (number, min(end_ms, (number + 1) * SLICE_MS) - max(start_ms, number * SLICE_MS))
        for number in range(start_ms // SLICE_MS, end_ms // SLICE_MS + 1)
    ]
