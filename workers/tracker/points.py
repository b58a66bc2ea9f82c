"""What a tracker is given: a point for each optimizer step, under the names that the field uses, and samples. Pure."""

from typing import Protocol

import msgspec

from dart_streams import stateless_random
from dart_streams.config.tracker import Tracker
from topics.trained import TrainedStep

NAMES = {
    "loss": "train/loss",
    "reward": "train/reward",
    "entropy": "train/entropy",
    "grad_norm": "train/grad_norm",
    "kl_reference": "train/kl",
    "clip_share": "train/clip_ratio/region_mean",
    "mismatch": "train/sampling/sampling_logp_difference/mean",
    "train_ms": "train/step_time",
}
"""Names of TRL's GRPOTrainer for what it measures too; every other metric is ``train/`` and its name on ``trained``."""
SECONDS = frozenset({"train_ms"})
"""Metrics that the field gives in seconds."""
VERSION = "train/version"
SAMPLES = "samples"
"""The name under which trackers show sample trajectories."""


class MetricPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of optimizer step ``step`` by their names; ``at_ms`` is when it ended (epoch milliseconds)."""

    step: int
    at_ms: int
    values: dict[str, float]


class SampleTrajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory that step ``step`` was trained on, as one picture (PNG) and a text."""

    step: int
    at_ms: int
    number: int
    caption: str
    picture: bytes


class TrackerRun(Protocol):
    """A run in a tool. What was logged is durable when :meth:`flush` returns; repeats are allowed."""

    flush_s: float
    """The least time between flushes, in seconds."""

    def log(self, point: MetricPoint) -> None:
        """Log the metrics of a step."""

    def log_sample(self, sample: SampleTrajectory) -> None:
        """Log a sample trajectory."""

    def flush(self) -> None:
        """Return when all that was logged is durable."""

    def close(self) -> None:
        """Flush, and end the run."""


def point_of(step: TrainedStep) -> MetricPoint:
    """Return the point of an optimizer step."""
    values = {name_of(name): value / 1000 if name in SECONDS else value for name, value in step.metrics.items()}
    return MetricPoint(step=step.train_step, at_ms=step.at_ms, values=values | {VERSION: float(step.version)})


def name_of(metric: str) -> str:
    """Return the name under which trackers show a metric of ``trained``."""
    return NAMES.get(metric, f"train/{metric}")


def sample_trajectories(step: TrainedStep, settings: Tracker) -> list[str]:
    """Return the trajectories of a step that are shown, the same ones each time the step is read."""
    if not settings.samples or step.train_step % settings.samples_every:
        return []
    drawn = sorted(
        set(step.trajectory_ids), key=lambda name: (stateless_random.number("sample", step.train_step, name), name)
    )
    return drawn[: settings.samples]
