"""Publisher of rank 0: weight versions (durable files, then the event) and trained steps."""

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

from dart_streams import crash_points, file_storage
from dart_streams.bus import sync_clients
from dart_streams.bus.clock_refusal import clock_refused
from dart_streams.bus.codec import encode
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.file_storage import StorageUnreachable
from dart_streams.heartbeats import Heartbeats
from dart_streams.policy import weight_location
from dart_streams.policy import weights as weight_files
from dart_streams.telemetry.spans import current_headers
from topics import Topic, trained, weights, weights_serving
from topics.trained import TrainedStep
from topics.transitions import WeightState
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing
from trainer.learning.learner import WeightSnapshot
from trainer.state import TrainerState, asks_for_whole, first_version, oldest_needed, versions_to_keep
from trainer.version_writer import BASE, VersionWriter, WrittenVersion, write_patiently

SEND_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0
CHECK_SHARE = 20
"""Weights that a worker failed to load are checked for at most 1/N of the time."""
FOLDER = re.compile(rf"v(\d+)-e(\d+)(?:{BASE})?")

log = structlog.get_logger()


class VersionDamaged(UserError):
    """The files of the newest version differ from the published ones; a resumed trainer writes them again."""

    exit_code = 1


class WeightPublisher:
    """Publishes the versions of one trainer incarnation, each to a new path; use as a context on rank 0."""

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
        """Stored versions by URI, oldest first."""
        self.look_again = Deadline(0.0)
        """Earliest time of the next check of weights that a worker failed to load."""
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
        """Publish the initial weights under this epoch and return the state with their version.

        Published weights keep their number, which fences an older trainer. Numbers that it used meanwhile are not
        reused.
        """
        before = sync_clients.read_events(self.bus, "weights-log", weights.TOPIC)
        for record in before:
            self._accept(record)
        known, newest = self.weights, self.weights.newest
        # Rollout workers read only below trainer.weights_uri, which may have changed.
        stored = newest if newest is not None and weight_location.is_covered(newest.uri, self.base) else None
        same = stored is not None and weight_files.digest_tensors(snapshot.tensors) == stored.sha256
        if stored is not None and snapshot.adapter is not None:
            self.writer.adopt_base(stored, snapshot.adapter)
        version = first_version(restored.version if restored else None, newest, same)
        start = msgspec.structs.replace(restored or TrainerState(), version=version)
        if same and stored is not None:
            resume = functools.partial(self._resume, stored, snapshot)
            resumed = write_patiently(resume, stored.version, stored.uri, self.stop)
            self._send_again(resumed, start.position.groups_consumed)
        else:
            self.publish(start, snapshot)
        after = sync_clients.read_events(self.bus, "weights-log", weights.TOPIC)
        of_model = (record for record in after[len(before) :] if known.admits(record))
        meanwhile = itertools.takewhile(lambda record: record.epoch < self.epoch, of_model)
        overtaking = max((record.version for record in meanwhile), default=-1)
        if overtaking >= version:
            start = msgspec.structs.replace(start, version=overtaking + 1)
            self.publish(start, snapshot)
        return start

    def _resume(self, newest: WeightVersion, snapshot: WeightSnapshot) -> WeightVersion:
        """Continue after the newest version; damaged files are written again."""
        parts = [] if newest.kind == "delta" else newest.parts  # A delta is written whole below.
        if damage := next(filter(None, map(weight_files.find_damage, parts)), ""):
            log.warning("weights written again", version=newest.version, reason=damage)
            newest = self.writer.write_whole(newest, weight_files.distinct_tensors(snapshot.tensors))
        return self.writer.resume(newest, snapshot.tensors, snapshot.adapter)

    def publish(self, state: TrainerState, snapshot: WeightSnapshot) -> WrittenVersion:
        """Write ``state.version``, send its event, remove old versions; raise VersionNotWritten if writing fails."""
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
        """Publish a newest delta whole if a worker failed to load it; raise VersionDamaged for a damaged full one."""
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
        failed = {record.worker_id for record in self.serving.values() if record.failed_version == newest.version}
        if not failed & alive or not self.look_again.expired:
            return
        started = time.monotonic()
        try:
            damage = weight_files.find_damage(newest.parts[-1])
        except StorageUnreachable as error:
            log.warning("weights not checked", version=newest.version, reason=str(error))
            damage = ""
        if damage:
            raise VersionDamaged(
                f"the files of the newest weights are damaged ({damage}): a restarted trainer writes them again from "
                "its checkpoint"
            )
        # The check reads the whole file, which may take a minute; the worker retries every few seconds.
        self.look_again = Deadline(CHECK_SHARE * (time.monotonic() - started))

    def _whole_is_asked_for(self, what: str) -> bool:
        newest = self.weights.newest
        alive = self.heartbeats.alive(self.liveness_s)
        if newest is None or not asks_for_whole(newest, self.serving.values(), alive):
            return False
        reasons = [record.error for record in self.serving.values() if record.failed_version is not None]
        log.warning(
            "weights published whole", what=what, reason=f"a rollout worker failed to load the newest: {reasons}"
        )
        return True

    def publish_consumed(self, groups_consumed: int) -> None:
        """Publish the newest version with a larger ``groups_consumed``: dispatch must not wait for dropped groups."""
        newest = self.weights.newest
        if newest is not None and groups_consumed > newest.groups_consumed:
            self._send_again(newest, groups_consumed)

    def publish_trained(self, step: TrainedStep) -> None:
        """Send the event of a step whose row is durable."""
        self._send(trained.TOPIC, step, f"step {step.train_step}", record_id=f"{step.epoch}/{step.train_step}")

    def _send_again(self, version: WeightVersion, groups_consumed: int) -> None:
        self._send_version(msgspec.structs.replace(version, epoch=self.epoch, groups_consumed=groups_consumed))

    def _send_version(self, event: WeightVersion) -> None:
        self._send(weights.TOPIC, event, f"weight version {event.version}")
        self._accept(event)

    def _accept(self, event: WeightVersion) -> None:
        """Fold one record into the published versions."""
        if self.weights.admits(event):
            self.weights = self.weights.accept(event)
            self.published[event.uri] = event

    def _read_serving(self) -> None:
        """Read new announcements of rollout workers."""
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
                f"the broker at {self.bus.servers} did not acknowledge {what} within {SEND_TIMEOUT_S:g} s "
                f"({error}): a restarted trainer resumes from its checkpoint"
            ) from error

    def _remove_unneeded(self) -> None:
        """Remove folders except those of the newest ``keep`` versions, of versions workers need, and of their parts."""
        newest = self.weights.newest
        if newest is None:
            return
        oldest = min(newest.version, oldest_needed(self.serving.values(), self.heartbeats.alive(self.liveness_s)))
        kept = versions_to_keep(list(self.published.values()), self.keep, oldest)
        self.published = {version.uri: version for version in kept}
        kept_folders = {part.uri.rpartition("/")[2] for version in kept for part in version.parts}
        storage = file_storage.open_storage(self.base)
        try:
            with storage.reached():
                for path in storage.filesystem.ls(storage.folder, detail=False):
                    name = path.rstrip("/").rpartition("/")[2]
                    match = FOLDER.fullmatch(name)
                    if match and name not in kept_folders and int(match[1]) < oldest and int(match[2]) <= self.epoch:
                        with contextlib.suppress(FileNotFoundError):
                            storage.filesystem.rm(path, recursive=True)
        except OSError as error:
            log.warning("old weights not removed", reason=str(error))
