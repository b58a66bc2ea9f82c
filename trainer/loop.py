"""The training loop: a batch, an optimiser step, a checkpoint, a version. Every rank runs it; rank 0 publishes."""

import threading
import time
from dataclasses import dataclass

import msgspec
import structlog

from dart_streams.clock import now_ms, since_ms
from dart_streams.config import Config
from dart_streams.telemetry import names, spans
from topics.trained import TrainedStep
from trainer import crash_points
from trainer.checkpoint import Checkpoints
from trainer.data.batch_builder import Batch, BatchFeed
from trainer.data.samples import REASONS
from trainer.learning import sft_phase
from trainer.learning.learner import Learner, StepResult, merged, never_stop
from trainer.learning.step import Stopped
from trainer.publish import Rank0Outputs
from trainer.ranks import Ranks
from trainer.reporting import refused_counts, step_metrics
from trainer.state import TrainerState

log = structlog.get_logger()


@dataclass
class Loop:
    """Trains until it is stopped, or has made all steps it was asked for."""

    config: Config
    ranks: Ranks
    learner: Learner
    feed: BatchFeed
    checkpoints: Checkpoints
    outputs: Rank0Outputs | None
    epoch: int
    stop: threading.Event

    def __post_init__(self) -> None:
        self.settings = self.config.trainer
        self.run_id = self.config.bus.run
        self.sft_learner = self.learner.sft_learner()

    def run(self, state: TrainerState) -> None:
        """Train from ``state`` on, and end with a checkpoint of the last step."""
        saved_step = state.train_step
        while self.settings.max_train_steps is None or state.train_step < self.settings.max_train_steps:
            batch = self._sft_batch(state) or self.feed.next(state.version)
            if batch is None:
                break
            if not batch.groups:
                if self.outputs:  # groups dropped while waiting must not count as dispatch's backlog
                    self.outputs.publisher.publish_consumed(batch.position.groups_consumed - self.feed.held)
                continue
            with self._span(state, batch):
                try:
                    state, saved_step = self._train(state, batch, saved_step)
                except Stopped:
                    log.info("step aborted to stop in time", train_step=state.train_step)
                    break
        if saved_step < state.train_step:
            self.checkpoints.save(self.learner.scorer, self.learner.optimizer, state, self.epoch)

    def _sft_batch(self, state: TrainerState) -> Batch | None:
        """Return the batch of a supervised phase, if one is due."""
        if not sft_phase.is_due(state.memory, self.settings.entropulse):
            return None
        groups = sft_phase.sft_groups(state.memory.successes, self.settings.entropulse, state.train_step)
        return self.feed.read(groups, state.position)

    def _span(self, state: TrainerState, batch: Batch) -> spans.ActiveSpan:
        """Return the span of the step that makes the next version; it links the groups that the step takes."""
        return spans.ActiveSpan(
            names.SPAN_TRAIN_STEP,
            ids=spans.train_step(self.run_id, state.version + 1),
            parent=spans.ROOT,
            links=[spans.group(self.run_id, ready.group.group_id) for ready in batch.groups],
            attributes={names.ATTR_VERSION: state.version + 1, names.ATTR_TRAIN_STEP: state.train_step + 1},
        )

    def _train(self, state: TrainerState, batch: Batch, saved_step: int) -> tuple[TrainerState, int]:
        """Make one step of a batch; return the state after it, and the step of the newest checkpoint."""
        crash_points.reach(crash_points.BEFORE_STEP)
        result = self._learn(batch, state.version)
        crash_points.reach(crash_points.AFTER_STEP)
        if not result.updated:
            return self._skip(state, batch), saved_step
        step = self._trained_step(state, batch, result)
        after = state.after(batch.position, step, self._memory(state, batch))
        return after, self._complete(after, step, batch, saved_step)

    def _learn(self, batch: Batch, version: int) -> StepResult:
        """Make a step's updates: those of a supervised phase are one step, which can't be aborted after the first."""
        if not batch.supervised:
            return self.learner.learn(batch.groups, version, self.stop.is_set)
        return merged(
            [
                self.sft_learner.learn([group], version, never_stop if number else self.stop.is_set)
                for number, group in enumerate(batch.groups)
            ]
        )

    def _skip(self, state: TrainerState, batch: Batch) -> TrainerState:
        """Go past a batch that gave no update: nothing in it could be trained, or its gradient was not finite."""
        log.warning("batch skipped", groups=[ready.group.group_id for ready in batch.groups])
        if self.outputs:
            self.outputs.reporter.dropped(batch)
            self.outputs.publisher.publish_consumed(batch.position.groups_consumed)
        memory = state.memory.after_phase() if batch.supervised else state.memory
        return msgspec.structs.replace(state, position=batch.position, memory=memory)

    def _memory(self, state: TrainerState, batch: Batch) -> sft_phase.SuccessMemory:
        """Return what supervised phases are made of after a batch; nothing is remembered if there are none."""
        if batch.supervised:
            return state.memory.after_phase()
        if not self.settings.entropulse.every:
            return state.memory
        return state.memory.after_step([ready.group for ready in batch.groups], self.settings.entropulse.kept)

    def _trained_step(self, state: TrainerState, batch: Batch, result: StepResult) -> TrainedStep:
        counts = refused_counts(batch.groups)
        refused = dict(zip(REASONS, self.ranks.total([float(counts[reason]) for reason in REASONS]), strict=True))
        return TrainedStep(
            train_step=state.train_step + 1,
            version=state.version + 1,
            epoch=self.epoch,
            group_ids=[ready.group.group_id for ready in batch.groups],
            trajectory_ids=[member.trajectory_id for ready in batch.groups for member in ready.group.members],
            metrics=step_metrics(batch, result, state.version, refused),
            at_ms=now_ms(),
        )

    def _complete(self, state: TrainerState, step: TrainedStep, batch: Batch, saved_step: int) -> int:
        """Make a step count, and return the step of the newest checkpoint.

        1. The checkpoint: from here on the groups are trained, whatever happens. A process that dies before it trains
           them again, from the same weights.
        2. The version: files, then the event. A process that dies before it publishes these weights when it resumes.
        3. The row in ``trained`` and its event. A process that dies before it does both when it resumes.
        4. The offsets in Kafka, for people only.
        """
        snapshot = self.learner.snapshot()
        started = time.perf_counter()
        if state.train_step % self.settings.checkpoint_every == 0:
            self.checkpoints.save(self.learner.scorer, self.learner.optimizer, state, self.epoch)
            saved_step = state.train_step
        crash_points.reach(crash_points.AFTER_CHECKPOINT)
        if self.outputs:
            checkpoint_ms = since_ms(started)
            self.outputs.consumer.check()
            started = time.perf_counter()
            self.outputs.publisher.publish(state, snapshot)
            publish_ms = since_ms(started)
            crash_points.reach(crash_points.AFTER_EVENT)
            metrics = step.metrics | {"publish_ms": publish_ms, "checkpoint_ms": checkpoint_ms}
            self.outputs.record(msgspec.structs.replace(step, metrics=metrics))
            self.outputs.consumer.commit(state.position)
            self.outputs.reporter.trained(state.train_step, state.version, batch, metrics)
        return saved_step
