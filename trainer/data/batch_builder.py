"""Batch selection: rank 0 broadcasts a batch of fresh, unseen groups; each rank reads its share."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import structlog

from dart_streams.clock import since_ms
from dart_streams.curation.staleness import group_staleness
from dart_streams.deadline import Deadline
from dart_streams.telemetry.stall_detector import StallDetector
from topics.curated import CuratedGroup
from trainer.data.consumer import Arrival, CuratedConsumer, Position
from trainer.data.prefetch import Prefetcher
from trainer.data.samples import ReadyGroup

BUILD_TIMEOUT_S = 2.0
"""Maximum wait for groups before rank 0 broadcasts again and checks for a stop."""

if TYPE_CHECKING:  # torch
    from trainer.ranks import Ranks

log = structlog.get_logger()


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0's broadcast: train on ``groups``, wait if there are none, or stop; ``position`` is the one after them.

    ``beside`` are groups of feedback, which take no place in the batch.
    """

    groups: list[CuratedGroup]
    beside: list[CuratedGroup]
    position: Position
    ahead: list[CuratedGroup]
    dropped: list[CuratedGroup]
    stale: int
    refused: int = 0
    stop: bool


class Batch(msgspec.Struct, kw_only=True):
    """Groups of one optimizer step on this rank, empty while incomplete; ``tokens_left_out`` is over all ranks.

    ``feedback`` are groups to imitate beside it; those of feedback that are a policy gradient are among ``groups``.
    """

    groups: list[ReadyGroup] = []
    feedback: list[ReadyGroup] = []
    position: Position = Position()
    stale: int = 0
    waited_ms: float = 0.0
    refused: int = 0
    tokens_left_out: int = 0

    @property
    def said(self) -> list[CuratedGroup]:
        """Groups of feedback in the batch or beside it."""
        return [ready.group for ready in (*self.groups, *self.feedback) if ready.group.feedback]


@dataclass
class BatchBuilder:
    """Selection on rank 0: drops repeated, stale and ``left_out`` arrivals; ``ahead`` are arrivals to prefetch."""

    consumer: CuratedConsumer
    position: Position
    size: int
    max_staleness: int
    stalls: StallDetector
    ahead: deque[CuratedGroup]
    left_out: frozenset[str] = frozenset()
    chosen: list[CuratedGroup] = field(default_factory=list)
    beside: list[CuratedGroup] = field(default_factory=list)
    dropped: list[CuratedGroup] = field(default_factory=list)
    stale: int = 0
    refused: int = 0

    def build(self, version: int, timeout_s: float, stop: threading.Event) -> BatchPlan:
        """Return a full plan, or one without groups after ``timeout_s``; groups taken so far are kept."""
        deadline = Deadline(timeout_s)
        while len(self.chosen) < self.size and not stop.is_set():
            arrival = self.consumer.take(min(0.2, deadline.remaining_s))
            if arrival is not None:
                self.stalls.note_arrival(f"group {arrival.group.group_id}")
                self.admit(arrival, version)
            elif deadline.expired:
                self.stalls.check()
                break
        return self._plan(stop.is_set())

    def admit(self, arrival: Arrival, version: int) -> None:
        """Choose or drop a group."""
        group = arrival.group
        repeated = self.position.contains(group.group_id)
        self.position = self.position.after(
            arrival.partition, arrival.offset, group.group_id, counts=not group.feedback
        )
        if repeated:
            log.info("repeated group ignored", group=group.group_id, offset=arrival.offset)
            # Its prefetched data is dropped, unless the present batch uses it.
            if all(group.group_id != chosen.group_id for chosen in (*self.chosen, *self.beside)):
                self.dropped.append(group)
            return
        if group.group_id in self.left_out:
            log.warning(
                "refused group left out", group=group.group_id, reason="the weights of its step were not finite"
            )
            self.dropped.append(group)
            self.refused += not group.feedback
            return
        age = group_staleness(group, version)
        if age > self.max_staleness:
            log.warning("stale group dropped", group=group.group_id, staleness=age, bound=self.max_staleness)
            self.dropped.append(group)
            self.stale += not group.feedback
            return
        (self.beside if group.feedback else self.chosen).append(group)

    def _plan(self, stop: bool) -> BatchPlan:
        full = len(self.chosen) >= self.size and not stop
        plan = BatchPlan(
            groups=self.chosen if full else [],
            beside=self.beside if full else [],
            position=self.position,
            ahead=[self.ahead.popleft() for _ in range(len(self.ahead))],
            dropped=self.dropped,
            stale=self.stale if full else 0,
            refused=self.refused if full else 0,
            stop=stop,
        )
        self.dropped = []
        if full:
            self.chosen, self.beside, self.stale, self.refused = [], [], 0, 0
        return plan


@dataclass
class BatchFeed:
    """Source of batches on every rank.

    With ``is_full``, which is asked with the tokens over all ranks, it gathers plans of single groups: until the batch
    is full, or has the ``most`` groups. Dispatch opens no more before the trainer takes some, so waiting for more would
    deadlock. ``cut`` then returns what this rank trains.
    """

    ranks: "Ranks"
    prefetcher: Prefetcher
    builder: BatchBuilder | None
    stop: threading.Event
    is_full: Callable[[float], bool] | None = None
    cut: Callable[[Sequence[ReadyGroup], float], list[ReadyGroup]] | None = None
    most: int = 1

    def __post_init__(self) -> None:
        self._gathered, self._beside, self._tokens = Batch(), list[ReadyGroup](), 0.0

    @property
    def held(self) -> int:
        """Groups taken from the log that wait here for the rest of their batch."""
        return len(self._gathered.groups) + (len(self.builder.chosen) if self.builder else 0)

    def next(self, version: int) -> Batch | None:
        """Return the next batch, an empty one while incomplete, None to stop; collective. Raises the store's errors."""
        started = time.perf_counter()
        while True:
            mine = self.builder.build(version, BUILD_TIMEOUT_S, self.stop) if self.builder else None
            plan: BatchPlan = self.ranks.from_first(mine, BatchPlan)
            if self.ranks.any(plan.stop or self.stop.is_set()):  # Another node may be the one that is stopped.
                return None
            self._gather(plan)
            if not plan.groups or self.is_full is None or self.is_full(self._tokens):
                break
            if len(self._gathered.groups) >= self.most:
                break
        self._gathered.waited_ms += since_ms(started)
        return self._batch(plan.position) if plan.groups else Batch(position=plan.position)

    def _gather(self, plan: BatchPlan) -> None:
        self.prefetcher.want_arrived([*plan.ahead, *plan.groups, *plan.beside])
        forgotten = sum([self.prefetcher.forget(group) for group in plan.dropped])
        self.prefetcher.leave_out(forgotten + len(plan.beside))
        taken = [self.prefetcher.take(group) for group in plan.groups]
        self._beside += [self.prefetcher.take(group) for group in plan.beside]
        self._gathered.groups += taken
        self._gathered.stale += plan.stale
        self._gathered.refused += plan.refused
        if (self.is_full or self.cut) and taken:
            self._tokens += self.ranks.total([tokens_of(taken)])[0]

    def _batch(self, position: Position) -> Batch:
        """Return the gathered groups as a batch, cut by the rule, and start the next."""
        batch, tokens, beside = self._gathered, self._tokens, self._beside
        self._gathered, self._beside, self._tokens = Batch(), [], 0.0
        batch.position = position
        if self.cut:
            batch.groups = self.cut(batch.groups, tokens)
            batch.tokens_left_out = int(tokens - self.ranks.total([tokens_of(batch.groups)])[0])
        batch.groups = [*batch.groups, *(ready for ready in beside if not ready.group.is_supervised)]
        batch.feedback = [ready for ready in beside if ready.group.is_supervised]
        return batch


def tokens_of(groups: Sequence[ReadyGroup]) -> int:
    """Return the number of answer tokens in this rank's groups."""
    return sum(len(item.answer) for group in groups for item in group.samples)
