"""A bundle as the page's source, folded once at the start. Screenshots are spooled to an anonymous file."""

import asyncio
import tempfile
from collections.abc import Sequence
from typing import Literal, Self

from console.bundles.bundle_inputs import captured_journal, config_of, pieces_of, tasks_of
from console.lineage.traces import RequestSegment, Timeline
from console.runs import evaluation
from console.runs.bundle import Bundle, BundleRecord
from console.runs.metrics_reader import MetricsReader
from console.runs.run_folder import PhaseLog, RunPhase
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from console.runs.token_texts import Pieces
from console.views.page.records import last_of_each_partition, newest_records
from console.views.page.source import SHOWN, NotFound, Progress, RunSource, action_segments
from console.views.report_metrics import ReportInputs
from dart_streams.config.tasks import TaskSet
from topics import Topic
from topics.observations import Observation


class BundleSource(RunSource):
    """A bundle as a source of the page. The fold keeps the bytes of every observation."""

    kind: Literal["run", "bundle"] = "bundle"

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.config = config_of(bundle)
        self.state = RunState(keep_steps=True)
        self.progress = Progress(False, "the bundle is being read")
        self._spool = tempfile.TemporaryFile(prefix="dart-page-")  # noqa: SIM115 (it lives as long as the source)
        self._places: dict[str, tuple[int, int]] = {}
        self._timeline: Timeline | None = None
        self._tasks: TaskSet | None = None
        self._journal = PhaseLog(outcome="recorded")

    @property
    def now_ms(self) -> int:
        """Return the time of the last record."""
        return max((activity.at_ms for activity in self.state.activity.values()), default=0)

    def journal(self) -> PhaseLog:
        """Return the captured journal, or the phases that the log shows."""
        return self._journal

    async def close(self) -> None:
        """Remove the spooled screenshots."""
        self._spool.close()

    async def run(self) -> None:
        """Read the bundle in a thread, then wait for cancellation."""
        await asyncio.to_thread(self.read)
        await asyncio.Event().wait()

    def read(self) -> Self:
        """Fold the records, spool the screenshots and return the source; raise ``BundleError`` on damage."""
        self.state = RunState(keep_steps=True).fold(read_log(self.bundle, SHOWN))
        self._journal = captured_journal(self.bundle) or recorded_journal(self.state)
        if self.bundle.has("blobs"):
            for blob in self.bundle.blobs():
                self._places[blob.sha256] = (self._spool.tell(), len(blob.data))
                self._spool.write(blob.data)
        self.progress = Progress(True)
        return self

    async def steps(self, trajectory_id: str) -> list[Observation]:
        """Return the recorded observations of a trajectory by step."""
        steps = sorted(self.state.observations.get(trajectory_id, ()))
        observations = (self.state.observation(trajectory_id, step) for step in steps)
        return [observation for observation in observations if observation is not None]

    async def screenshot(self, sha256: str) -> bytes:
        """Return a spooled screenshot; raise :class:`NotFound` without one."""
        if sha256 not in self._places:
            raise NotFound("the bundle has no such screenshot: capture it with --blobs")
        start, size = self._places[sha256]
        self._spool.seek(start)
        return self._spool.read(size)

    async def segments(self, trajectory_id: str) -> dict[int, Sequence[RequestSegment]]:
        """Return the parts of each traced action's time, by index of the action."""
        if self._timeline is None:
            lines = self.bundle.lines("traces") if self.bundle.has("traces") else ()
            self._timeline = await asyncio.to_thread(Timeline, lines)
        return action_segments(self._timeline, trajectory_id)

    async def records(self, topic: Topic, needle: bytes, limit: int) -> list[BundleRecord]:
        """Return the newest records with ``needle`` in key or value."""
        if not self.bundle.has(topic.name):
            return []
        records = self.bundle.records(topic.name)
        searched = records if needle else last_of_each_partition(records, limit)
        return await asyncio.to_thread(newest_records, searched, needle, limit)

    def task_set(self) -> TaskSet:
        """Return the tasks that the bundle carries."""
        if self._tasks is None:
            self._tasks = tasks_of(self.bundle)
        return self._tasks

    def read_pieces(self) -> Pieces:
        """Return the bytes of the run's tokens."""
        return pieces_of(self.bundle)

    async def report_inputs(self) -> ReportInputs:
        """Return the inputs of a report; bundles have no metrics, costs and offsets."""
        return self.inputs_with(MetricsReader(None), None, [])


def recorded_journal(state: RunState) -> PhaseLog:
    """Return the evaluated versions, and training as the phase from its first order to its last end."""
    begun = [record.at_ms for order, record in state.orders.values() if order.purpose == "train"]
    ended = [trajectory.finished_ms for trajectory in state.finished.values() if trajectory.purpose == "train"]
    evaluated = evaluation.evaluated_versions(state)
    return PhaseLog(
        phases=(RunPhase("circle", min(begun), max(*ended, min(begun))),) if begun and ended else (),
        before_version=evaluated[0] if evaluated else None,
        after_version=evaluated[-1] if len(evaluated) > 1 else None,
        outcome="recorded",
    )
