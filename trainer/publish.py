"""What rank 0 publishes: weight versions (files first, durable at their URI, then the event) and trained steps."""

import contextlib
import functools
import itertools
import re
import threading
import time
from collections.abc import Callable
from typing import Self

import msgspec
import structlog
from kafka import KafkaProducer
from kafka.errors import InvalidTimestampError, KafkaError

from dart_streams.bus import sync_clients
from dart_streams.bus.clock_refusal import clock_refused
from dart_streams.bus.codec import encode
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.heartbeats import Heartbeats
from dart_streams.policy import weight_location, weight_storage
from dart_streams.policy import weights as weight_files
from dart_streams.policy.weight_storage import StorageUnreachable
from dart_streams.telemetry.spans import current_headers
from topics import Topic, trained, weights, weights_serving
from topics.trained import TrainedStep
from topics.transitions import WeightState
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing
from trainer import crash_points
from trainer.learning.learner import WeightSnapshot
from trainer.patient_writing import write_patiently
from trainer.state import TrainerState, asks_for_whole, first_version, oldest_needed, versions_to_keep
from trainer.version_writer import BASE, VersionWriter, WrittenVersion

SEND_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0
CHECK_SHARE = 20
"""Weights that a worker could not load are looked at for at most one part in twenty of the time."""
FOLDER = re.compile(rf"v(\d+)-e(\d+)(?:{BASE})?")

log = structlog.get_logger()


class VersionDamaged(UserError):
    """The files of the newest version are not those that were published; a trainer that resumes writes them again."""

    exit_code = 1


class WeightPublisher:
    """Publishes the versions of one trainer incarnation, each under a path of its own. For rank 0; use as a context."""

    def __init__(
        self,
        config: Config,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
        stop: threading.Event | None = None,
    ) -> None:
        self.bus = config.bus
        self.stop = stop or threading.Event()
        self.base = weight_location.base_of(config)
        self.keep = max(1, config.trainer.keep_versions)
        self.liveness_s = config.rollout.liveness_s
        self.epoch = epoch
        self.weights = WeightState(model_id=config.policy.model_id)
        self.published: dict[str, WeightVersion] = {}
        """The versions that are stored, by their place, the oldest first."""
        self.look_again = Deadline(0.0)
        """When weights that a worker could not load are looked at next."""
        self.writer = VersionWriter(config.trainer.publish)
        self.serving: dict[str, WeightsServing] = {}
        self.heartbeats = Heartbeats(clock)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            self._producer: KafkaProducer = sync_clients.create_producer(self.bus, "trainer-weights")
            opened.callback(self._producer.close, timeout=CLOSE_TIMEOUT_S)
            reader = sync_clients.TopicReader(self.bus, "trainer-weights-serving", weights_serving.TOPIC)
            self._serving_reader = opened.enter_context(reader)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def begin(self, restored: TrainerState | None, snapshot: WeightSnapshot) -> TrainerState:
        """Publish the weights this incarnation starts from, under its epoch, and return the state with their version.

        Weights that were published already are published again as they are, without a new number: that fences an older
        trainer, and changes nothing for those who serve them. They are published whole now, if they were a delta.
        Version numbers that it used meanwhile are not reused.
        """
        before = sync_clients.read_events(self.bus, "weights-log", weights.TOPIC)
        for record in before:
            self._accept(record)
        found = self.weights
        # Rollout workers read nothing that lies elsewhere, as after a change of trainer.weights_uri.
        there = found.newest is not None and weight_location.is_covered(found.newest.uri, self.base)
        same = (
            there and found.newest is not None and weight_files.digest_tensors(snapshot.tensors) == found.newest.sha256
        )
        if there and found.newest is not None and snapshot.adapter is not None:
            self.writer.adopt_base(found.newest, snapshot.adapter)
        version = first_version(restored.version if restored else None, found.newest, same)
        start = msgspec.structs.replace(restored or TrainerState(), version=version)
        if same and found.newest is not None:
            resume = functools.partial(self._resume, found.newest, snapshot)
            resumed = write_patiently(resume, found.newest.version, found.newest.uri, self.stop)
            self._send_again(resumed, start.position.groups_consumed)
        else:
            self.publish(start, snapshot)
        after = sync_clients.read_events(self.bus, "weights-log", weights.TOPIC)
        of_model = (record for record in after[len(before) :] if found.admits(record))
        meanwhile = itertools.takewhile(lambda record: record.epoch < self.epoch, of_model)
        overtaking = max((record.version for record in meanwhile), default=-1)
        if overtaking >= version:
            start = msgspec.structs.replace(start, version=overtaking + 1)
            self.publish(start, snapshot)
        return start

    def _resume(self, newest: WeightVersion, snapshot: WeightSnapshot) -> WeightVersion:
        """Go on after the newest version; its files are written again if they are damaged."""
        parts = [] if newest.kind == "delta" else newest.parts  # of a delta all is written whole now anyway
        if damage := next(filter(None, map(weight_files.find_damage, parts)), ""):
            log.warning("weights written again", version=newest.version, reason=damage)
            newest = self.writer.write_whole(newest, weight_files.distinct_tensors(snapshot.tensors))
        return self.writer.resume(newest, snapshot.tensors, snapshot.adapter)

    def publish(self, state: TrainerState, snapshot: WeightSnapshot) -> WrittenVersion:
        """Make the files of ``state.version`` durable, send their event, remove versions that nobody needs any more.

        Raises VersionNotWritten if their disk is full or fails.
        """
        uri = f"{self.base}/v{state.version:06d}-e{self.epoch}"
        self._read_serving()
        whole = self._whole_is_asked_for("the next version")
        write = functools.partial(self.writer.write, uri, state.version, *snapshot, whole=whole)
        files = write_patiently(write, state.version, uri, self.stop)
        crash_points.reach(crash_points.AFTER_FILES)
        self._send_version(
            WeightVersion(
                model_id=self.weights.model_id,
                version=state.version,
                uri=uri,
                sha256=files.own.sha256,
                train_step=state.train_step,
                epoch=self.epoch,
                groups_consumed=state.position.groups_consumed,
                kind=files.own.kind,
                file_sha256=files.own.file_sha256,
                base=files.base,
            )
        )
        self._remove_unneeded()
        return files

    def heal(self) -> None:
        """Publish the newest version again, whole, if it is a delta and a live rollout worker could not load one.

        Raises VersionDamaged if it is a full one that such a worker could not load, and its file is not what was
        published: not every rank comes here, so its tensors can't be had.
        """
        self._read_serving()
        newest = self.weights.newest
        if newest is None:
            return
        if newest.kind == "full":
            self._refuse_damaged(newest)
        elif self._whole_is_asked_for("the newest version"):
            write = functools.partial(self.writer.write_whole, newest, self.writer.newest_tensors())
            healed = write_patiently(write, newest.version, newest.uri, self.stop)
            self._send_again(healed, newest.groups_consumed)

    def _refuse_damaged(self, newest: WeightVersion) -> None:
        alive = self.heartbeats.alive(self.liveness_s)
        failed = [one.failed_version == newest.version for one in self.serving.values() if one.worker_id in alive]
        if not any(failed) or not self.look_again.expired:
            return
        started = time.monotonic()
        try:
            damage = weight_files.find_damage(newest.parts[-1])
        except StorageUnreachable as error:
            log.warning("weights not looked at", version=newest.version, reason=str(error))
            damage = ""
        if damage:
            raise VersionDamaged(
                f"the files of the newest weights are damaged ({damage}): started again, the trainer resumes from its "
                "checkpoint, which has these weights, and writes them again"
            )
        # All of the file was read, which may take a minute; the worker tries again every few seconds.
        self.look_again = Deadline(CHECK_SHARE * (time.monotonic() - started))

    def _whole_is_asked_for(self, what: str) -> bool:
        newest = self.weights.newest
        alive = self.heartbeats.alive(self.liveness_s)
        if newest is None or not asks_for_whole(newest, self.serving.values(), alive):
            return False
        reasons = [record.error for record in self.serving.values() if record.failed_version is not None]
        log.warning(
            "weights published whole", what=what, reason=f"a rollout worker could not load the newest: {reasons}"
        )
        return True

    def publish_consumed(self, groups_consumed: int) -> None:
        """Publish the newest version again with a larger ``groups_consumed``.

        Otherwise dispatch counts groups that were dropped while the trainer waits as backlog, and opens no others.
        """
        newest = self.weights.newest
        if newest is not None and groups_consumed > newest.groups_consumed:
            self._send_again(newest, groups_consumed)

    def publish_trained(self, step: TrainedStep) -> None:
        """Send the record of a step, once its row is durable; the log then has all that the store has."""
        self._send(trained.TOPIC, step, f"step {step.train_step}", record_id=f"{step.epoch}/{step.train_step}")

    def _send_again(self, version: WeightVersion, groups_consumed: int) -> None:
        self._send_version(msgspec.structs.replace(version, epoch=self.epoch, groups_consumed=groups_consumed))

    def _send_version(self, event: WeightVersion) -> None:
        self._send(weights.TOPIC, event, f"weight version {event.version}")
        self._accept(event)

    def _accept(self, event: WeightVersion) -> None:
        """Fold one record into what is published."""
        if self.weights.admits(event):
            self.weights = self.weights.accept(event)
            self.published[event.uri] = event

    def _read_serving(self) -> None:
        """Read what rollout workers have announced since the last time."""
        for event in self._serving_reader.events_to_end():
            self.serving[event.worker_id] = event
            self.heartbeats.note(event.worker_id, event.alive_ms)

    def _send(self, topic: Topic, event: msgspec.Struct, what: str, record_id: str = "") -> None:
        record = encode(topic, event, current_headers(), record_id)
        try:
            self._producer.send(
                self.bus.prefix + topic.name, key=record.key, value=record.value, headers=record.headers
            ).get(timeout=SEND_TIMEOUT_S)
        except InvalidTimestampError as error:
            raise clock_refused(self.bus.servers, self.bus.prefix + topic.name, str(error), now_ms()) from None
        except KafkaError as error:
            raise ServiceUnavailable(
                f"the broker at {self.bus.servers} did not take {what} within {SEND_TIMEOUT_S:g} s "
                f"({error}): a restarted trainer resumes from its checkpoint"
            ) from error

    def _remove_unneeded(self) -> None:
        """Remove the folders of earlier versions, those never published included.

        The newest ``keep`` stay, whatever a live rollout worker serves or may be fetching, and what these are made
        from. What was read of workers has arrived since the version before, so a dead worker's last version stays for
        one version longer than it must. What can't be removed now is tried again with the next version.
        """
        newest = self.weights.newest
        if newest is None:
            return
        oldest = min(newest.version, oldest_needed(self.serving.values(), self.heartbeats.alive(self.liveness_s)))
        stay = versions_to_keep(list(self.published.values()), self.keep, oldest)
        self.published = {version.uri: version for version in stay}
        kept = {part.uri.rpartition("/")[2] for version in stay for part in version.parts}
        storage = weight_storage.open_storage(self.base)
        try:
            with storage.reached():
                for path in storage.filesystem.ls(storage.folder, detail=False):
                    name = path.rstrip("/").rpartition("/")[2]
                    match = FOLDER.fullmatch(name)
                    if match and name not in kept and int(match[1]) < oldest and int(match[2]) <= self.epoch:
                        with contextlib.suppress(FileNotFoundError):
                            storage.filesystem.rm(path, recursive=True)
        except OSError as error:
            log.warning("old weights not removed", reason=str(error))
