"""Everything a report is made of, gathered from the log, the store and the metrics of a run."""

from typing import Any

import msgspec

from dart_streams.bus.lag import Lag
from dart_streams.config import Config
from dart_streams.history.metrics_reader import MetricsReader
from dart_streams.history.run_folder import PhaseLog, RunPhase
from dart_streams.history.run_state import RunState
from dart_streams.tasks import TaskSet

USAGE_FILE = "processes.jsonl"


class ProcessUsage(msgspec.Struct, frozen=True):
    """What a process tree had cost at one moment: CPU seconds since its start, and memory.

    ``own_s`` of the seconds are the worker process's without what it has started (a browser), and ``loop_s`` its main
    thread's, where its event loop runs, without those of libraries (an engine). ``stolen_s``, of the supervisor's
    samples, are those that the machine's host gave to others.
    """

    at_ms: int
    process: str
    cpu_s: float
    rss_mb: float
    own_s: float = 0.0
    loop_s: float = 0.0
    stolen_s: float = 0.0


class ReportInputs(msgspec.Struct, frozen=True):
    """The log's fold, the journal's phases, the trainer's rows, the metrics, and how far each group has come."""

    config: Config
    tasks: TaskSet
    journal: PhaseLog
    progress: RunState
    trained: list[dict[str, Any]]
    readings: MetricsReader
    lags: list[Lag]
    usage: list[ProcessUsage]

    @property
    def circle(self) -> RunPhase:
        """The training phase; an empty one if the run did not come so far. One that still lasts ends now."""
        phase = self.journal.phase("circle")
        if phase is None:
            return RunPhase("circle", 0, 0)
        newest_ms = max((activity.at_ms for activity in self.progress.activity.values()), default=phase.started_ms)
        return phase if phase.ended_ms is not None else RunPhase("circle", phase.started_ms, newest_ms)

    @property
    def circle_s(self) -> float:
        """How long the training phase lasted, in seconds."""
        return ((self.circle.ended_ms or 0) - self.circle.started_ms) / 1000

    @property
    def slots(self) -> int:
        """Environment slots of the whole run."""
        return self.config.env.workers * self.config.env.slots
