"""Training loop of every rank: a batch, an optimizer step, a checkpoint, a version. Rank 0 publishes."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import msgspec
import structlog

from dart_streams import crash_points
from dart_streams.bus import sync_clients
from dart_streams.clock import now_ms, since_ms
from dart_streams.config import Config
from dart_streams.store import SyncStore
from dart_streams.store.blobs import ref_of
from dart_streams.telemetry import names, spans
from topics import trained
from topics.curated import CuratedGroup
from topics.trained import TrainedStep
from topics.values import BlobRef
from trainer import refusals as refused
from trainer.checkpoint import CheckpointNotWritten, Checkpoints
from trainer.data.batch_builder import Batch, BatchFeed
from trainer.data.consumer import CuratedConsumer, Fenced, Overtaken
from trainer.data.samples import REASONS, ReadyGroup
from trainer.data.scores import MEDIA_TYPE, StepScores, encode_scores, scores_in
from trainer.data.successes import SuccessMemory, history_limit, replay_group
from trainer.hooks import DART, StepStart, TrainingRules, is_pretraining
from trainer.learning.imitation import StepImitation, drop_replaced, plan_imitation, trajectories_of
from trainer.learning.imitation_term import sft_metrics
from trainer.learning.learner import Learner, StepResult
from trainer.learning.step import Stopped
from trainer.publish import WeightPublisher
from trainer.ranks import Ranks
from trainer.refusals import RefusedStep, RefusedSteps, TrainingDiverged
from trainer.reporting import StepReporter, refused_counts, step_metrics
from trainer.state import TrainerState

MAX_SKIPPED = 5
"""Consecutive batches without a finite gradient after which training ends."""

log = structlog.get_logger()


class Rank0Outputs(NamedTuple):
    """Consumer, publisher, store and reporter of rank 0."""

    consumer: CuratedConsumer
    publisher: WeightPublisher
    store: SyncStore
    reporter: StepReporter

    def check(self) -> None:
        """Raise :class:`Fenced` if the database has a newer trainer's epoch, or raise the consumer thread's error."""
        self.consumer.check()
        claimed = self.store.claimed_epoch(self.consumer.model_id)
        if claimed > self.publisher.epoch:
            raise self._fenced_by(claimed)
        self.check_versions()

    def check_versions(self) -> None:
        """Raise :class:`Overtaken` if the newest version on the topic is ahead of this trainer's."""
        self.consumer.check()
        newest, own = self.consumer.weights.newest, self.publisher.weights.newest
        if newest is None or own is None:
            return
        if (newest.version, newest.epoch, newest.groups_consumed) > (own.version, own.epoch, own.groups_consumed):
            raise Overtaken.by(newest, self.publisher.bus)

    def record(self, step: TrainedStep) -> None:
        """Write a step's row and publish its event; raise :class:`Fenced` if a newer trainer has claimed its epoch."""
        row, model_id = msgspec.structs.asdict(step), self.consumer.model_id
        if not self.store.write_trained_by_claim(model_id, self.publisher.epoch, row.pop("train_step"), row):
            raise self._fenced_by(self.store.claimed_epoch(model_id))
        self.publisher.publish_trained(step)

    def record_last(self, step: TrainedStep) -> None:
        """Record the newest step of a checkpoint, unless its event exists."""
        known = sync_clients.read_events(self.publisher.bus, "trained-log", trained.TOPIC)
        if (step.epoch, step.train_step) not in {(event.epoch, event.train_step) for event in known}:
            self.record(step)

    def _fenced_by(self, newer: int) -> Fenced:
        return Fenced.by(newer, self.publisher.epoch, self.consumer.model_id, self.publisher.bus.run)


class Past(NamedTuple):
    """Groups of earlier steps, as read: ``replayed`` with the batch, imitated ``beside`` it, and in a ``phase``.

    ``feedback`` is imitated beside the batch too.
    """

    replayed: list[ReadyGroup]
    beside: list[ReadyGroup]
    phase: list[ReadyGroup]
    feedback: list[ReadyGroup]


@dataclass
class Loop:
    """Trains until stopped or until ``trainer.max_train_steps``."""

    config: Config
    ranks: Ranks
    learner: Learner
    feed: BatchFeed
    checkpoints: Checkpoints
    outputs: Rank0Outputs | None
    epoch: int
    stop: threading.Event
    refusals: RefusedSteps
    rules: TrainingRules = DART
    note_turn: Callable[[], None] = lambda: None
    """Called at each turn: a look for groups, a micro-batch before the first update, a checkpoint."""

    def __post_init__(self) -> None:
        self.settings = self.config.trainer
        self.skipped_in_a_row = 0
        self.not_finite_groups = 0
        """Groups in batches skipped since the last step because no gradient was finite."""

    def run(self, state: TrainerState) -> None:
        """Train from ``state`` on; save a checkpoint of the last step at the end."""
        saved_step = state.train_step
        while self.settings.max_train_steps is None or state.train_step < self.settings.max_train_steps:
            imitation = plan_imitation(state.memory, self.settings, self.rules, state.memories, self._start(state))
            for group in imitation.groups:
                self.feed.prefetcher.want(group)
            batch = self.feed.next(state.version)
            self.note_turn()
            if batch is None:
                break
            if not batch.groups:
                with self.ranks.first_working():
                    if self.outputs:  # Dropped groups must not count as dispatch's backlog.
                        self.outputs.publisher.publish_consumed(batch.position.groups_consumed - self.feed.held)
                        self.outputs.check_versions()
                        self.outputs.publisher.heal()
                continue
            with self._span(state, batch) as span:
                before = state.train_step
                try:
                    state, saved_step = self._train(state, batch, imitation, saved_step)
                except Stopped:
                    log.info("step aborted by a stop", train_step=state.train_step)
                    break
                if self.outputs and state.train_step > before:
                    spans.trace_training(span, (one.trajectory_id for of in batch.groups for one in of.group.members))
        if saved_step < state.train_step:
            self._save(state)

    def _refuse(self, step: TrainedStep, fault: str) -> NoReturn:
        """Record that a step's weights are not finite, and end the trainer."""
        refusal = RefusedStep(train_step=step.train_step, group_ids=tuple(step.group_ids), fault=fault)
        refusals = self.refusals.after(refusal)
        file = self.checkpoints.folder / refused.FILE
        if self.outputs:
            self.outputs.check()
            try:
                refusals.write(file)
            except OSError as error:
                log.error(
                    "refusal not recorded: the same groups will be trained again", file=str(file), reason=str(error)
                )
        raise refusals.error(file)

    def _save(self, state: TrainerState) -> None:
        """Write a checkpoint, unless this trainer is fenced."""
        if self.outputs:
            self.outputs.check()
        try:
            self.checkpoints.save(self.learner.scorer, self.learner.optimizer, state, self.epoch)
        except (OSError, CheckpointNotWritten):
            if self.outputs:
                self.outputs.check()  # A successor removes partial checkpoints.
            raise

    def _span(self, state: TrainerState, batch: Batch) -> spans.ActiveSpan:
        """Return the span of the step, linked to the groups it trains on."""
        return spans.ActiveSpan(
            names.SPAN_TRAIN_STEP,
            ids=spans.train_step_span(self.config.bus.run, state.version + 1),
            parent=spans.ROOT,
            links=[spans.group_span(self.config.bus.run, ready.group.group_id) for ready in batch.groups],
            attributes={names.ATTR_VERSION: state.version + 1, names.ATTR_TRAIN_STEP: state.train_step + 1},
        )

    def _start(self, state: TrainerState) -> StepStart:
        """Return the step that follows a state."""
        return StepStart(state.train_step + 1, self.config.curation.dispatch.seed)

    def _train(
        self, state: TrainerState, batch: Batch, imitation: StepImitation, saved_step: int
    ) -> tuple[TrainerState, int]:
        """Train one batch; return the new state and the step of the newest checkpoint."""
        crash_points.reach(crash_points.BEFORE_STEP)
        started = time.perf_counter()
        replay = self._replay(state, batch)
        imitation = drop_replaced(imitation, batch.said, self.feed.prefetcher.forget)
        past = Past(*([self.feed.prefetcher.take(group) for group in groups] for groups in (replay, *imitation)))
        batch.waited_ms += since_ms(started)
        result = self._learn(batch, past, state.version, is_pretraining(self.rules, self._start(state)))
        crash_points.reach(crash_points.AFTER_STEP)
        if not result.updated:
            return self._skip(state, batch, result), saved_step
        scores = self._recorded_scores([*batch.groups, *past.replayed])
        step = self._trained_step(state, batch, replay, imitation, result, scores)
        self.skipped_in_a_row = self.not_finite_groups = 0
        after = state.after(batch.position, step, self._memory(state, batch))
        return after, self._complete(after, step, batch, saved_step)

    def _replay(self, state: TrainerState, batch: Batch) -> list[CuratedGroup]:
        """Return the trajectories of the past that join a batch, as a group."""
        if self.rules.replay is None:
            return []
        groups, start = [ready.group for ready in batch.groups], self._start(state)
        return replay_group(start.train_step, self.rules.replay(state.memories, groups, start))

    def _learn(self, batch: Batch, past: Past, version: int, pretraining: bool) -> StepResult:
        """Make the updates of a step; those of a supervised phase come last and are not aborted."""
        groups = [*batch.groups, *past.replayed]
        beside = [*past.beside, *batch.feedback, *past.feedback]
        result = self.learner.learn(groups, version, self._should_stop, beside, pretraining)
        if not result.updated:
            return result
        started = time.perf_counter()
        before = self.learner.mean_entropy(batch.groups) if past.phase else math.nan
        updates = [update for group in past.phase if (update := self.learner.imitate([group])) is not None]
        after = self.learner.mean_entropy(batch.groups) if past.phase else math.nan
        metrics = result.metrics | sft_metrics(updates, result.tokens, before, after)
        metrics |= self._replay_metrics(batch, past.replayed)
        finite = sum(math.isfinite(update.grad_norm) for update in updates)
        train_ms = result.train_ms + since_ms(started)
        finite, lost = result.updates + finite, result.lost + len(updates) - finite
        return result._replace(metrics=metrics, train_ms=train_ms, updates=finite, lost=lost)

    def _should_stop(self) -> bool:
        self.note_turn()
        return self.stop.is_set()

    def _recorded_scores(self, groups: Sequence[ReadyGroup]) -> BlobRef | None:
        """Store the scores that a step used; return their reference, None without any. Collective."""
        if self.rules.score is None:
            return None
        found = self.ranks.gathered(scores_in(groups), StepScores)
        if not found:
            return None
        data = encode_scores(found)
        return self.outputs.store.put_blob(data, MEDIA_TYPE) if self.outputs else ref_of(data, MEDIA_TYPE)

    def _replay_metrics(self, batch: Batch, replayed: Sequence[ReadyGroup]) -> dict[str, float]:
        """Return the metrics of replayed groups; none without them. Collective."""
        if not replayed:
            return {}
        sequences = self.ranks.total([sum(len(group.samples) for group in replayed)])[0]
        past, new = (
            sum(bool(member.selected) for ready in groups for member in ready.group.members)
            for groups in (replayed, batch.groups)
        )
        return {"replayed_sequences": sequences, "replay_share": past / (past + new)}

    def _skip(self, state: TrainerState, batch: Batch, result: StepResult) -> TrainerState:
        """Skip a batch without an update; raise TrainingDiverged after :data:`MAX_SKIPPED` non-finite gradients."""
        reason = "no finite gradient" if result.lost else "no trainable sample"
        groups = [ready.group.group_id for ready in batch.groups]
        log.warning("batch skipped", groups=groups, reason=reason)
        not_finite = len(batch.groups) if result.lost else 0
        self.not_finite_groups += not_finite + batch.refused
        self.skipped_in_a_row += result.lost > 0
        if self.skipped_in_a_row >= MAX_SKIPPED:
            raise TrainingDiverged(
                f"{self.skipped_in_a_row} consecutive batches had no finite gradient (last groups: "
                f"{', '.join(groups[:8])}; weights of version {state.version}): lower trainer.learning_rate or check "
                "policy.path. A restarted trainer tries them again from its checkpoint"
            )
        if self.outputs:
            self.outputs.reporter.dropped(batch, not_finite)
            self.outputs.publisher.publish_consumed(batch.position.groups_consumed)
        memory = self._feedback_memory(state.memory, batch)
        return msgspec.structs.replace(state, position=batch.position, memory=memory)

    def _memory(self, state: TrainerState, batch: Batch) -> SuccessMemory:
        """Return the success memory after a batch, and tell the recipes of it."""
        groups = [ready.group for ready in batch.groups if not ready.group.feedback]
        if self.rules.remember:
            self.rules.remember(state.memories, groups)
        limit, memory = history_limit(self.settings), state.memory
        memory = memory.after_step(groups, limit) if limit else memory
        return self._feedback_memory(memory, batch)

    def _feedback_memory(self, memory: SuccessMemory, batch: Batch) -> SuccessMemory:
        """Return the memory after the groups of feedback in a batch."""
        return memory.after_feedback(batch.said, self.config.feedback.recent) if batch.said else memory

    def _trained_step(
        self,
        state: TrainerState,
        batch: Batch,
        replay: Sequence[CuratedGroup],
        imitation: StepImitation,
        result: StepResult,
        scores: BlobRef | None,
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
            replayed=[identity for group in replay for identity in trajectories_of(group)],
            scores=scores,
            feedback=[group.group_id for group in (*(ready.group for ready in batch.feedback), *imitation.feedback)],
        )

    def _complete(self, state: TrainerState, step: TrainedStep, batch: Batch, saved_step: int) -> int:
        """Commit a step; return the step of the newest checkpoint.

        0. A fenced trainer, or one whose weights are not finite, stops here. If it is fenced between the steps below,
           readers ignore the version and the database refuses the row.
        1. The checkpoint. After a crash before it, the groups are trained again from the same weights.
        2. The version: files, then the event. After a crash before it, the restarted trainer publishes these weights.
        3. The row in ``trained`` and its event. After a crash before it, the restarted trainer writes both.
        4. The offsets in Kafka, used by lag displays only.
        """
        snapshot = self.learner.snapshot()
        if fault := self.learner.fault_of(snapshot):
            self._refuse(step, fault)
        started = time.perf_counter()
        if state.train_step % self.settings.checkpoint_every == 0:
            self._save(state)
            saved_step = state.train_step
            self.note_turn()
        crash_points.reach(crash_points.AFTER_CHECKPOINT)
        with self.ranks.first_working():
            if self.outputs:
                checkpoint_ms = since_ms(started)
                self.outputs.check()
                crash_points.reach(crash_points.BEFORE_EVENT)
                started = time.perf_counter()
                files = self.outputs.publisher.publish(state, snapshot)
                took = {"publish_ms": since_ms(started), "checkpoint_ms": checkpoint_ms}
                crash_points.reach(crash_points.AFTER_EVENT)
                metrics = {**step.metrics, **files.metrics(), **took}
                self.outputs.record(msgspec.structs.replace(step, metrics=metrics))
                self.outputs.consumer.commit(state.position)
                self.outputs.reporter.trained(state.train_step, state.version, batch, metrics)
        return saved_step
