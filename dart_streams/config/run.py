"""The supervised run, its task set and evaluation, and its telemetry."""

from pathlib import Path

from dart_streams.config.section import AboveZero, Count, NonNegative, Section, Share


class Run(Section, frozen=True):
    """The supervised run."""

    id: str = "default"
    """The run's name; ``dart-streams run`` sets it in the resolved configuration that it writes."""
    state_dir: str = ".dart"
    """The folder of runs, policies and local services."""
    minutes: NonNegative = 9.0
    """How long the training phase lasts."""
    train_steps: Count | None = None
    """The optimiser step that ends the training phase, if it comes first."""
    demonstrate: bool = True
    """Put a demonstration of each training task into the experience pool first."""
    settle_s: NonNegative = 150.0
    """How long open episodes may take to end after training; the orders of others go back to their topic."""
    drain_s: NonNegative = 10.0
    """How long a process may take to end after SIGTERM."""

    @property
    def folder(self) -> Path:
        """The run's own folder: its configuration, logs, metrics, weights and report."""
        return Path(self.state_dir) / "runs" / self.id


class Tasks(Section, frozen=True):
    """The task set."""

    file: str = "tasks.toml"
    """The task file, relative to the configuration file."""


class Evaluation(Section, frozen=True):
    """Evaluation on the held-out tasks, before and after training."""

    episodes: Count = 240
    """Rollouts of an evaluation; 0: no evaluation."""
    temperature: NonNegative = 1.0
    """Sampling temperature."""
    timeout_s: AboveZero = 300.0
    """How long an evaluation may take."""


class Telemetry(Section, frozen=True):
    """Traces, metrics and stall reports."""

    sampling: Share = 0.0
    """The share of step requests that are traced; spans that fail are always written."""
    otlp_endpoint: str = ""
    """A collector's base address (OTLP over HTTP), such as ``http://127.0.0.1:4318``; empty: the run's folder."""
    stall_s: AboveZero = 30.0
    """How long a wait may last before the process reports it."""
