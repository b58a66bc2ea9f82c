"""The training loop: a batch, an optimizer step, a checkpoint, a version. Every rank runs it; rank 0 publishes."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec
import structlog

from dart_streams.clock import now_ms, since_ms
from dart_streams.config import Config
from dart_streams.telemetry import names, spans
from topics.trained import TrainedStep
from trainer import crash_points
from trainer import refusals as refused
from trainer.checkpoint import CheckpointNotWritten, Checkpoints
from trainer.data.batch_builder import Batch, BatchFeed
from trainer.data.samples import REASONS, ReadyGroup
from trainer.data.successes import SuccessMemory, history_limit
from trainer.learning.imitation import StepImitation, plan_imitation, trajectories_of
from trainer.learning.imitation_term import sft_metrics
from trainer.learning.learner import Learner, StepResult
from trainer.learning.step import Stopped
from trainer.rank0_outputs import Rank0Outputs
from trainer.ranks import Ranks
from trainer.refusals import RefusedStep, RefusedSteps, TrainingDiverged
from trainer.reporting import refused_counts, step_metrics
from trainer.state import TrainerState

MAX_SKIPPED = 5
"""Batches in a row without a finite gradient after which the trainer ends."""

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
    refusals: RefusedSteps

    def __post_init__(self) -> None:
        self.settings = self.config.trainer
        self.run_id = self.config.bus.run
        self.skipped_in_a_row = 0
        self.not_finite_groups = 0
        """Groups of batches that were skipped since the last step, because no gradient was finite."""

    def run(self, state: TrainerState) -> None:
        """Train from ``state`` on, and end with a checkpoint of the last step."""
        saved_step = state.train_step
        while self.settings.max_train_steps is None or state.train_step < self.settings.max_train_steps:
            imitation = plan_imitation(
                state.memory, self.settings, self.config.curation.dispatch.seed, state.train_step + 1
            )
            self.feed.want(imitation.groups)
            batch = self.feed.next(state.version)
            if batch is None:
                break
            if not batch.groups:
                if self.outputs:  # groups dropped while waiting must not count as dispatch's backlog
                    self.outputs.publisher.publish_consumed(batch.position.groups_consumed - self.feed.held)
                    self.outputs.check_versions()
                    self.outputs.publisher.heal()
                continue
            with self._span(state, batch):
                try:
                    state, saved_step = self._train(state, batch, imitation, saved_step)
                except Stopped:
                    log.info("step aborted to stop in time", train_step=state.train_step)
                    break
        if saved_step < state.train_step:
            self._save(state)

    def _refuse(self, step: TrainedStep, fault: str) -> NoReturn:
        """Note that a step's weights are not finite, and end the trainer."""
        refusal = RefusedStep(train_step=step.train_step, group_ids=tuple(step.group_ids), fault=fault)
        refusals = self.refusals.after(refusal)
        file = self.checkpoints.folder / refused.FILE
        if self.outputs:
            self.outputs.check()
            try:
                refusals.write(file)
            except OSError as error:
                log.error("refusal not noted: the same groups are tried again", file=str(file), reason=str(error))
        raise refusals.error(file)

    def _save(self, state: TrainerState) -> None:
        """Write a checkpoint, unless this trainer is fenced: its successor resumes from the newest one there is."""
        if self.outputs:
            self.outputs.check()
        try:
            self.checkpoints.save(self.learner.scorer, self.learner.optimizer, state, self.epoch)
        except (OSError, CheckpointNotWritten):
            if self.outputs:
                self.outputs.check()  # the successor has removed what this one had begun
            raise

    def _span(self, state: TrainerState, batch: Batch) -> spans.ActiveSpan:
        """Return the span of the step that makes the next version; it links the groups that the step takes."""
        return spans.ActiveSpan(
            names.SPAN_TRAIN_STEP,
            ids=spans.train_step_span(self.run_id, state.version + 1),
            parent=spans.ROOT,
            links=[spans.group_span(self.run_id, ready.group.group_id) for ready in batch.groups],
            attributes={names.ATTR_VERSION: state.version + 1, names.ATTR_TRAIN_STEP: state.train_step + 1},
        )

    def _train(
        self, state: TrainerState, batch: Batch, imitation: StepImitation, saved_step: int
    ) -> tuple[TrainerState, int]:
        """Make one step of a batch; return the state after it, and the step of the newest checkpoint."""
        crash_points.reach(crash_points.BEFORE_STEP)
        started = time.perf_counter()
        imitated = self.feed.read(imitation.groups)
        batch = msgspec.structs.replace(batch, waited_ms=batch.waited_ms + since_ms(started))
        result = self._learn(batch, imitated[: len(imitation.beside)], imitated[len(imitation.beside) :], state.version)
        crash_points.reach(crash_points.AFTER_STEP)
        if not result.updated:
            return self._skip(state, batch, result), saved_step
        step = self._trained_step(state, batch, imitation, result)
        self.skipped_in_a_row = self.not_finite_groups = 0
        after = state.after(batch.position, step, self._memory(state, batch, imitation))
        return after, self._complete(after, step, batch, saved_step)

    def _learn(
        self, batch: Batch, beside: Sequence[ReadyGroup], phase: Sequence[ReadyGroup], version: int
    ) -> StepResult:
        """Make a step's updates, those of a supervised phase last: they are part of it, and can't be aborted."""
        result = self.learner.learn(batch.groups, version, self.stop.is_set, beside)
        if not result.updated:
            return result
        started = time.perf_counter()
        updates = [update for group in phase if (update := self.learner.imitate([group])) is not None]
        metrics = result.metrics | sft_metrics(updates, result.tokens)
        made = sum(math.isfinite(update.grad_norm) for update in updates)
        train_ms = result.train_ms + since_ms(started)
        made, lost = result.updates + made, result.lost + len(updates) - made
        return result._replace(metrics=metrics, train_ms=train_ms, updates=made, lost=lost)

    def _skip(self, state: TrainerState, batch: Batch, result: StepResult) -> TrainerState:
        """Go past a batch that gave no update: nothing in it could be trained, or its gradient was not finite.

        Raises TrainingDiverged if that has been so for :data:`MOST_SKIPPED` batches; a trainer that is started again
        goes on from the checkpoint, which is before all of them.
        """
        reason = "no gradient was finite" if result.lost else "nothing in it could be trained"
        groups = [ready.group.group_id for ready in batch.groups]
        log.warning("batch skipped", groups=groups, reason=reason)
        not_finite = len(batch.groups) if result.lost else 0
        self.not_finite_groups += not_finite + batch.refused
        self.skipped_in_a_row += result.lost > 0
        if self.skipped_in_a_row >= MAX_SKIPPED:
            raise TrainingDiverged(
                f"{self.skipped_in_a_row} batches in a row gave no gradient that is finite, the last of the groups "
                f"{', '.join(groups[:8])}, with the weights of version {state.version}: lower trainer.learning_rate, "
                "or see whether policy.path is sound; started again, the trainer tries them again from its checkpoint"
            )
        if self.outputs:
            self.outputs.reporter.dropped(batch, not_finite)
            self.outputs.publisher.publish_consumed(batch.position.groups_consumed)
        return msgspec.structs.replace(state, position=batch.position)

    def _memory(self, state: TrainerState, batch: Batch, imitation: StepImitation) -> SuccessMemory:
        """Return the successes to imitate after a batch; nothing is remembered if there is no use for it."""
        kept = history_limit(self.settings)
        if not kept:
            return state.memory
        memory = state.memory.after_step([ready.group for ready in batch.groups], kept)
        return memory.after_phase() if imitation.phase else memory

    def _trained_step(
        self, state: TrainerState, batch: Batch, imitation: StepImitation, result: StepResult
    ) -> TrainedStep:
        counts = refused_counts(batch.groups)
        refused = dict(zip(REASONS, self.ranks.total([float(counts[reason]) for reason in REASONS]), strict=True))
        return TrainedStep(
            train_step=state.train_step + 1,
            version=state.version + 1,
            epoch=self.epoch,
            group_ids=[ready.group.group_id for ready in batch.groups],
            trajectory_ids=[member.trajectory_id for ready in batch.groups for member in ready.group.members],
            metrics=step_metrics(batch, result, state.version, refused, self.not_finite_groups + batch.refused),
            at_ms=now_ms(),
            imitated=[identity for group in imitation.beside for identity in trajectories_of(group)],
            sft_updates=[trajectories_of(group) for group in imitation.phase],
            top_tokens=list(result.top_tokens),
        )

    def _complete(self, state: TrainerState, step: TrainedStep, batch: Batch, saved_step: int) -> int:
        """Make a step count, and return the step of the newest checkpoint.

        0. A trainer that was fenced does none of it. One that is fenced between two of them may send its version still,
           which every reader ignores; its row is refused by the database. Nor is any of it done with weights that are
           not finite: that is noted, for the trainer that is started again, and ends this one.
        1. The checkpoint: from here on the groups are trained, whatever happens. A process that dies before it trains
           them again, from the same weights.
        2. The version: files, then the event. A process that dies before it publishes these weights when it resumes.
        3. The row in ``trained`` and its event. A process that dies before it does both when it resumes.
        4. The offsets in Kafka, for people only.
        """
        snapshot = self.learner.snapshot()
        if fault := self.learner.fault_of(snapshot):
            self._refuse(step, fault)
        started = time.perf_counter()
        if state.train_step % self.settings.checkpoint_every == 0:
            self._save(state)
            saved_step = state.train_step
        crash_points.reach(crash_points.AFTER_CHECKPOINT)
        if self.outputs:
            checkpoint_ms = since_ms(started)
            self.outputs.check()
            crash_points.reach(crash_points.BEFORE_EVENT)
            started = time.perf_counter()
            files = self.outputs.publisher.publish(state, snapshot)
            publish_ms = since_ms(started)
            crash_points.reach(crash_points.AFTER_EVENT)
            metrics = step.metrics | files.metrics() | {"publish_ms": publish_ms, "checkpoint_ms": checkpoint_ms}
            self.outputs.record(msgspec.structs.replace(step, metrics=metrics))
            self.outputs.consumer.commit(state.position)
            self.outputs.reporter.trained(state.train_step, state.version, batch, metrics)
        return saved_step
