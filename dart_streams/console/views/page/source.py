"""What the page reads a run from: live topics with the store, or a bundle. Both keep the same fold."""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, Protocol

import msgspec

from dart_streams.bus.lag import Lag
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.console.lineage.traces import RequestSegment
from dart_streams.console.repair.dead_letters import DeadLetter, DeadLetterSummary
from dart_streams.console.runs.bundle import BundleRecord
from dart_streams.console.runs.run_folder import PhaseLog
from dart_streams.console.runs.run_state import RunState
from dart_streams.console.views.report_metrics import ReportInputs
from dart_streams.errors import UserError
from topics import ALL, Topic, action_requests
from topics.observations import Observation

SHOWN: tuple[Topic, ...] = tuple(topic for topic in ALL if topic is not action_requests.TOPIC)
"""The topics that the page folds: all but the requests, which carry whole prompts and say nothing more."""
SCANNED = 200_000
"""Records of a topic that a search looks at, the newest ones."""


class NotFound(UserError):
    """The run has nothing of this id."""

    exit_code = 1


class Progress(msgspec.Struct, frozen=True):
    """How far a source is: ``ready`` once the fold has all that was there, ``text`` what it waits for otherwise."""

    ready: bool
    text: str = ""


class RunSource(Protocol):
    """A run, wherever it is. ``state`` is the fold; it changes between awaits, in the event loop that reads it."""

    kind: Literal["run", "bundle"]
    config: Config

    @property
    def state(self) -> RunState:
        """The fold."""

    @property
    def progress(self) -> Progress:
        """How far the fold is."""

    @property
    def now_ms(self) -> int:
        """The present (epoch milliseconds): of a bundle, when its last record was written."""

    def journal(self) -> PhaseLog:
        """Return the run's phases."""

    def note_viewer(self) -> None:
        """Note that somebody looks: a live source reads only while somebody does."""

    async def close(self) -> None:
        """Close the connections, if there are any."""

    async def run(self) -> None:
        """Keep the fold up to date until cancelled."""

    async def steps(self, trajectory_id: str) -> list[Observation]:
        """Return a trajectory's observations by step; empty if there is none such."""

    async def screenshot(self, sha256: str) -> bytes:
        """Return a screenshot; raise :class:`NotFound` if there is none."""

    async def segments(self, trajectory_id: str) -> dict[int, Sequence[RequestSegment]]:
        """Return where each traced action's time went, by the action's index."""

    async def records(self, topic: Topic, needle: bytes, limit: int) -> list[BundleRecord]:
        """Return the newest records whose key or value contains ``needle``, the newest first."""

    async def lags(self) -> list[Lag] | None:
        """Return the lag of each consumer group; none of a bundle, None if the broker does not say."""

    def task_set(self) -> TaskSet:
        """Return the run's tasks; none where its file is not here."""

    async def report_inputs(self) -> ReportInputs:
        """Return what a report is computed from, as far as it is there."""

    async def dead_letters(self, topic: Topic | None) -> list[DeadLetterSummary] | list[DeadLetter]:
        """Return how many dead letters each topic has, or those of one topic."""


def trained_rows(state: RunState) -> list[dict[str, Any]]:
    """Return the optimizer steps as the store's rows have them, in order."""
    return [msgspec.to_builtins(state.trained[number]) for number in sorted(state.trained)]


def matches(record: BundleRecord, needle: bytes) -> bool:
    """Say whether a record's key or value contains ``needle``."""
    return not needle or needle in (record.key or b"") or needle in (record.value or b"")


def newest(records: Iterable[BundleRecord], needle: bytes, limit: int) -> list[BundleRecord]:
    """Return the ``limit`` newest of a topic's records that contain ``needle``, the newest first."""
    return heapq.nlargest(limit, (record for record in records if matches(record, needle)), key=age)


def last_of_each_partition(records: Iterable[BundleRecord], count: int) -> Iterator[BundleRecord]:
    """Yield the last ``count`` records of each partition, in order within it, as ``records`` are.

    A topic is read from near its end, which only offsets say, and several producers' times are not in their order: who
    has the whole topic leaves out the same, or the newest of it would be others.
    """
    last: defaultdict[int, deque[BundleRecord]] = defaultdict(lambda: deque(maxlen=count))
    for record in records:
        last[record.partition].append(record)
    yield from chain.from_iterable(last.values())


def age(record: BundleRecord) -> tuple[int, int, int]:
    """Return what records of a topic are ordered by, whatever they are read from."""
    return record.at_ms, record.partition, record.offset
