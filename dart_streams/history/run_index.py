"""What the log says of a run, by id: steps, trajectories, groups, optimiser steps, weight versions, screenshots."""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

import topics
from dart_streams.bus.codec import Undecodable, decode
from dart_streams.config import Bus
from dart_streams.history.bundle import Bundle, BundleRecord
from dart_streams.history.bundle_inputs import headers_of
from topics import curated, observations, trained, trajectories, weights, weights_serving
from topics.curated import CuratedGroup
from topics.observations import Observation
from topics.trained import TrainedStep
from topics.trajectories import Trajectory
from topics.values import BlobRef
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

READ = (observations.TOPIC, trajectories.TOPIC, curated.TOPIC, trained.TOPIC, weights.TOPIC, weights_serving.TOPIC)


class ObservationHeader(msgspec.Struct):
    """What is needed of an observation to find it again."""

    trajectory_id: str
    step: int
    screenshot: BlobRef | None = None


_glimpse = msgspec.json.Decoder(ObservationHeader)
_observation = msgspec.json.Decoder(Observation)


class RunIndex:
    """A run's log, folded. Observations stay encoded until one is asked for: they are most of it."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[int, bytes]] = defaultdict(dict)
        self.shots: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.trajectories: dict[str, Trajectory] = {}
        self.groups: dict[str, CuratedGroup] = {}
        self.groups_of: dict[str, list[str]] = defaultdict(list)
        self.trained: dict[int, TrainedStep] = {}
        self.trained_with: dict[str, list[int]] = defaultdict(list)
        self.versions: dict[int, WeightVersion] = {}
        self.serving: dict[tuple[int, str], WeightsServing] = {}

    def fold(self, records: Iterable[tuple[str, BundleRecord]]) -> "RunIndex":
        """Take records of the topics in :data:`READ`; what does not decode is in the dead letters and left out."""
        for topic, record in records:
            with contextlib.suppress(Undecodable, msgspec.DecodeError):
                self._take(topic, record)
        return self

    def observation(self, trajectory_id: str, step: int) -> Observation | None:
        """Return an observation, or None."""
        raw = self.steps.get(trajectory_id, {}).get(step)
        return _observation.decode(raw) if raw is not None else None

    def _take(self, topic: str, record: BundleRecord) -> None:
        if topic == observations.TOPIC.name:
            raw = record.value or b""
            seen = _glimpse.decode(raw)
            self.steps[seen.trajectory_id][seen.step] = raw
            if seen.screenshot is not None:
                self.shots[seen.screenshot.sha256].append((seen.trajectory_id, seen.step))
            return
        self._note(decode(topics.BY_NAME[topic], record.value, headers_of(record)))

    def _note(self, event: Any) -> None:
        match event:
            case Trajectory():
                self.trajectories[event.trajectory_id] = event
            case CuratedGroup() if event.group_id not in self.groups:
                self.groups[event.group_id] = event
                for member in event.members:
                    self.groups_of[member.trajectory_id].append(event.group_id)
            case TrainedStep() if event.train_step not in self.trained:
                self.trained[event.train_step] = event
                for group_id in event.group_ids:
                    self.trained_with[group_id].append(event.train_step)
            case WeightVersion():
                self.versions.setdefault(event.version, event)
            case WeightsServing():
                self.serving.setdefault((event.version, event.worker_id), event)


def of_bundle(bundle: Bundle) -> Iterator[tuple[str, BundleRecord]]:
    """Yield a bundle's records of the topics that facts are made of."""
    for topic in READ:
        if bundle.has(topic.name):
            for record in bundle.records(topic.name):
                yield topic.name, record


def of_topics(bus: Bus) -> Iterator[tuple[str, BundleRecord]]:
    """Yield what the broker has now of them; raise :class:`UserError` if there are no such topics."""
    from dart_streams.history import capture

    for topic in capture.existing(bus, READ):
        for record in capture.now_in(bus, topic):
            yield topic.name, record
