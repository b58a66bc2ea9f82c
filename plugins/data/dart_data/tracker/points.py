"""Input of a tracker: a point per optimizer step, under the field's usual names, and sample trajectories. Pure."""

import abc

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
"""Names of TRL's GRPOTrainer; other metrics are ``train/`` and their name on ``trained``."""
IN_SECONDS = frozenset({"train_ms"})
VERSION = "train/version"
SAMPLES = "samples"
"""Name of the sample trajectories in a tracker."""


class MetricPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of optimizer step ``step`` by name; ``at_ms`` is its end (epoch milliseconds)."""

    step: int
    at_ms: int
    values: dict[str, float]


class SampleTrajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory of step ``step`` as a picture (PNG) and a text."""

    step: int
    at_ms: int
    number: int
    caption: str
    picture: bytes


class TrackerRun(abc.ABC):
    """A run of a tool. Logged values are durable when :meth:`flush` returns; repeats are allowed."""

    flush_s: float
    """Minimum interval between flushes in seconds."""

    @abc.abstractmethod
    def log(self, point: MetricPoint) -> None:
        """Log the metrics of a step."""

    @abc.abstractmethod
    def log_sample(self, sample: SampleTrajectory) -> None:
        """Log a sample trajectory."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Make all logged values durable."""

    def close(self) -> None:
        """Flush and end the run."""
        self.flush()


def point_of(step: TrainedStep) -> MetricPoint:
    """Return the point of an optimizer step."""
    values = {name_of(name): value / 1000 if name in IN_SECONDS else value for name, value in step.metrics.items()}
    return MetricPoint(step=step.train_step, at_ms=step.at_ms, values=values | {VERSION: float(step.version)})


def name_of(metric: str) -> str:
    """Return the name of a metric of ``trained`` in a tracker."""
    return NAMES.get(metric, f"train/{metric}")


def sample_trajectories(step: TrainedStep, settings: Tracker) -> list[str]:
    """Return the sample trajectories of a step, equal at each reading of the step."""
    if not settings.samples or step.train_step % settings.samples_every:
        return []
    ranks = {name: stateless_random.number("sample", step.train_step, name) for name in step.trajectory_ids}
    return sorted(ranks, key=lambda name: (ranks[name], name))[: settings.samples]
