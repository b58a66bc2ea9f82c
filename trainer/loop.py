"""The training loop: a batch, an optimiser step, a checkpoint, a version. Every rank runs it; rank 0 speaks."""

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import structlog

from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.store import SyncStore
from dart_streams.telemetry import names, spans
from trainer import crash_points
from trainer.checkpoint import Checkpoints
from trainer.data.batch_builder import Batch, BatchFeed
from trainer.data.consumer import CuratedConsumer
from trainer.data.samples import REASONS
from trainer.learning import sft_phase as pulse
from trainer.learning.learner import Learned, Learner, WeightSnapshot, never, together
from trainer.learning.ranks import Ranks
from trainer.learning.step import Stopped
from trainer.publish import WeightPublisher
from trainer.reporting import StepReporter, figures_of, refused_of
from trainer.state import Trained, TrainerState

log = structlog.get_logger()


class Rank0Outputs(NamedTuple):
    """What only rank 0 has: the ways out of the process."""

    consumer: CuratedConsumer
    publisher: WeightPublisher
    store: SyncStore
    reporter: StepReporter


class Loop:
    """Trains until it is told to stop, or has made all steps it was asked for."""

    def __init__(
        self,
        config: Config,
        ranks: Ranks,
        learner: Learner,
        intake: BatchFeed,
        checkpoints: Checkpoints,
        speaker: Rank0Outputs | None,
        epoch: int,
        stop: threading.Event,
    ) -> None:
        self.settings = config.trainer
        self.ranks = ranks
        self.learner = learner
        self.imitator = learner.imitator()
        self.intake = intake
        self.checkpoints = checkpoints
        self.speaker = speaker
        self.epoch = epoch
        self.stop = stop
        self.run_id = config.bus.run

    def run(self, state: TrainerState) -> None:
        """Train from ``state`` on, and end with a checkpoint of the last step."""
        saved_step = state.train_step
        while self.settings.max_train_steps is None or state.train_step < self.settings.max_train_steps:
            batch = self._imitated(state) or self.intake.next(state.version)
            if batch is None:
                break
            if not batch.groups:
                self._tell_consumed(batch)
                continue
            with self._span(state, batch):
                try:
                    state, saved_step = self._train(state, batch, saved_step)
                except Stopped:
                    log.info("step given up to stop in time", train_step=state.train_step)
                    break
        if saved_step < state.train_step:
            self.checkpoints.save(self.learner.scorer, self.learner.optimizer, state, self.epoch)

    def _imitated(self, state: TrainerState) -> Batch | None:
        """Return the batch of a supervised phase, if one is due."""
        if not pulse.is_due(state.memory, self.settings.pulse):
            return None
        groups = pulse.drawn(state.memory.successes, self.settings.pulse, state.train_step)
        return self.intake.read(groups, state.position)

    def _learn(self, batch: Batch, version: int) -> Learned:
        """Make a step's updates: all that a phase imitates is one step, and too late to give up after the first."""
        if not batch.supervised:
            return self.learner.learn(batch.groups, version, self.stop.is_set)
        return together(
            [
                self.imitator.learn([group], version, never if number else self.stop.is_set)
                for number, group in enumerate(batch.groups)
            ]
        )

    def _span(self, state: TrainerState, batch: Batch) -> spans.ActiveSpan:
        """Return the span of the step that makes the next version; it links the groups that the step takes."""
        attributes = {names.ATTR_VERSION: state.version + 1, names.ATTR_TRAIN_STEP: state.train_step + 1}
        return spans.ActiveSpan(
            names.SPAN_TRAIN_STEP,
            ids=spans.train_step(self.run_id, state.version + 1),
            parent=spans.ROOT,
            links=[spans.group(self.run_id, ready.group.group_id) for ready in batch.groups],
            attributes=attributes,
        )

    def _train(self, state: TrainerState, batch: Batch, saved_step: int) -> tuple[TrainerState, int]:
        """Make one step of a batch; return the state after it, and the step of the newest checkpoint."""
        crash_points.reach(crash_points.BEFORE_STEP)
        learned = self._learn(batch, state.version)
        crash_points.reach(crash_points.AFTER_STEP)
        if not learned.updated:
            return self._leave_out(state, batch), saved_step
        after = state.after(batch.position, self._row(state, batch, learned), self._memory(state, batch))
        return after, self._hand_over(after, batch, saved_step)

    def _memory(self, state: TrainerState, batch: Batch) -> pulse.SuccessMemory:
        """Return what supervised phases are made of after a batch; nothing is remembered if there are none."""
        if batch.supervised:
            return state.memory.after_phase()
        if not self.settings.pulse.every:
            return state.memory
        return state.memory.after_step([ready.group for ready in batch.groups], self.settings.pulse.kept)

    def _hand_over(self, state: TrainerState, batch: Batch, saved_step: int) -> int:
        """Make a step count, and return the step of the newest checkpoint.

        1. The checkpoint: from here on the groups are trained, whatever happens. A process that dies before it trains
           them again, from the same weights.
        2. The version: files, then the event. A process that dies before it announces these weights when it resumes.
        3. The row in ``trained`` and its event. A process that dies before it does both when it resumes.
        4. The offsets in Kafka, for people only.
        """
        release = self.learner.release()
        started = time.monotonic()
        if state.train_step % self.settings.checkpoint_every == 0:
            self.checkpoints.save(self.learner.scorer, self.learner.optimizer, state, self.epoch)
            saved_step = state.train_step
        crash_points.reach(crash_points.AFTER_CHECKPOINT)
        if self.speaker:
            self._speak(self.speaker, state, batch, release, (time.monotonic() - started) * 1000)
        return saved_step

    def _speak(
        self, speaker: Rank0Outputs, state: TrainerState, batch: Batch, release: WeightSnapshot, checkpoint_ms: float
    ) -> None:
        if state.last is None:
            raise ValueError("a step without its row")
        speaker.consumer.check()
        started = time.monotonic()
        speaker.publisher.publish(state, release)
        publish_ms = (time.monotonic() - started) * 1000
        crash_points.reach(crash_points.AFTER_EVENT)
        figures = state.last.metrics | {"publish_ms": publish_ms, "checkpoint_ms": checkpoint_ms}
        write_row(speaker.store, state.train_step, state.last, figures)
        speaker.publisher.tell_trained(state.train_step, state.last, figures)
        speaker.consumer.commit(state.position)
        speaker.reporter.trained(state.train_step, state.version, batch, figures)

    def _row(self, state: TrainerState, batch: Batch, learned: Learned) -> Trained:
        counts = refused_of(batch.groups)
        refused = dict(zip(REASONS, self.ranks.total([float(counts[why]) for why in REASONS]), strict=True))
        return Trained(
            version=state.version + 1,
            epoch=self.epoch,
            group_ids=[ready.group.group_id for ready in batch.groups],
            trajectory_ids=[member.trajectory_id for ready in batch.groups for member in ready.group.members],
            metrics=figures_of(batch, learned, state.version, refused),
            at_ms=now_ms(),
        )

    def _leave_out(self, state: TrainerState, batch: Batch) -> TrainerState:
        """Go past a batch that gave no update: nothing in it could be trained, or its gradient was not finite."""
        log.warning("batch left out", groups=[ready.group.group_id for ready in batch.groups])
        if self.speaker:
            self.speaker.reporter.left_out(batch)
            self.speaker.publisher.tell_consumed(batch.position.groups_consumed)
        memory = state.memory.after_phase() if batch.supervised else state.memory
        return msgspec.structs.replace(state, position=batch.position, memory=memory)

    def _tell_consumed(self, batch: Batch) -> None:
        """While waiting: let dispatch know of groups that were dropped, so that they do not count as backlog."""
        if self.speaker:
            self.speaker.publisher.tell_consumed(batch.position.groups_consumed - self.intake.held)


def write_row(store: SyncStore, train_step: int, row: Trained, metrics: Mapping[str, float]) -> None:
    """Write a step's row into ``trained``; the same step again overwrites it."""
    store.write_trained(
        train_step,
        {
            "version": row.version,
            "epoch": row.epoch,
            "group_ids": row.group_ids,
            "trajectory_ids": row.trajectory_ids,
            "metrics": dict(metrics),
            "at_ms": row.at_ms,
        },
    )
