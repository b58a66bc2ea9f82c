"""The page's source of a run: live topics with the store, or a bundle. Both keep the same fold."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from console.lineage.traces import RequestSegment, Timeline, request_segments
from console.repair.dead_letters import DeadLetter, DeadLetterSummary
from console.runs.bundle import BundleRecord
from console.runs.metrics_reader import MetricsReader
from console.runs.process_usage import ProcessUsage
from console.runs.run_folder import PhaseLog
from console.runs.run_state import RunState
from console.runs.token_texts import Pieces, read_pieces
from console.views.report_metrics import ReportInputs
from dart_streams.bus.lag import Lag
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.errors import UserError
from topics import ALL, Topic, action_requests
from topics.observations import Observation

SHOWN: tuple[Topic, ...] = tuple(topic for topic in ALL if topic is not action_requests.TOPIC)
"""The topics that the page folds. Action requests carry whole prompts and no further facts."""


class NotFound(UserError):
    """The run has no such id, or the page no such view."""

    exit_code = 1


class Progress(msgspec.Struct, frozen=True):
    """State of the fold: ``ready`` once it has read all existing records; ``text`` is the reason of a wait."""

    ready: bool
    text: str = ""


class RunSource(Protocol):
    """A run to show. ``state`` is the fold, which changes between awaits in the event loop that reads it."""

    kind: Literal["run", "bundle"]
    config: Config
    state: RunState
    progress: Progress

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.config.bus.run.removeprefix("dart.")

    @property
    def now_ms(self) -> int:
        """The present in epoch milliseconds; for a bundle, the time of its last record."""

    def journal(self) -> PhaseLog:
        """Return the phases of the run."""

    def note_viewer(self) -> None:
        """Note that a viewer is present: a live source reads only then."""
        return

    async def close(self) -> None:
        """Close the connections."""

    async def run(self) -> None:
        """Keep the fold up to date until cancelled."""

    async def steps(self, trajectory_id: str) -> list[Observation]:
        """Return the observations of a trajectory by step; empty for an unknown one."""

    async def screenshot(self, sha256: str) -> bytes:
        """Return a screenshot; raise :class:`NotFound` if the run lacks it."""

    async def segments(self, trajectory_id: str) -> dict[int, Sequence[RequestSegment]]:
        """Return the parts of each traced action's time, by index of the action."""

    async def records(self, topic: Topic, needle: bytes, limit: int) -> list[BundleRecord]:
        """Return the newest records with ``needle`` in key or value, the newest first."""

    async def lags(self) -> list[Lag] | None:
        """Return the lag of each consumer group: empty for a bundle, None if the broker does not answer."""
        return []

    def task_set(self) -> TaskSet:
        """Return the tasks of the run; empty if their file is not on this machine."""

    def read_pieces(self) -> Pieces:
        """Return the bytes of the policy's tokens; empty if its tokenizer is not on this machine. It may block."""
        return read_pieces(self.config, self.task_set())

    async def report_inputs(self) -> ReportInputs:
        """Return the inputs of a report as far as they exist."""

    async def dead_letters(self, topic: Topic | None) -> list[DeadLetterSummary] | list[DeadLetter]:
        """Return the number of dead letters by topic, or the letters of one topic; a bundle has none."""
        return []

    def inputs_with(self, readings: MetricsReader, lags: list[Lag] | None, usage: list[ProcessUsage]) -> ReportInputs:
        """Return the inputs of a report from the fold, and from metrics, lags and costs that are not in it."""
        return ReportInputs(
            config=self.config,
            tasks=self.task_set(),
            journal=self.journal(),
            progress=self.state,
            readings=readings,
            lags=lags,
            usage=usage,
        )


def action_segments(timeline: Timeline, trajectory_id: str) -> dict[int, Sequence[RequestSegment]]:
    """Return the segments of a trajectory's traced actions, by index of the action."""
    return {
        index: request_segments(timeline.below(span))
        for (identity, index), span in timeline.steps.items()
        if identity == trajectory_id
    }
