"""The tracker: where a run's metrics and sample trajectories are written for people who use another tool."""

from typing import Literal

from dart_streams.config.section import Count, Optional, Positive

TrackerTool = Literal["", "tensorboard", "mlflow", "wandb", "trackio"]


class Tracker(Optional, frozen=True):
    """A process that copies metrics and samples to an experiment tracker; nothing waits for it. Needs ``make data``."""

    tool: TrackerTool = ""
    """Which one; empty: none."""
    project: str = "dart_streams"
    """The project, or experiment, under which the tracker files the run."""
    target: str = ""
    """A folder, or of MLflow a tracking URI; empty: ``tracker`` in the run's folder."""
    offline: bool = True
    """Of wandb: write files that ``wandb sync`` uploads; otherwise to its server, which ``WANDB_API_KEY`` opens."""
    samples: Count = 2
    """Sample trajectories of an optimiser step that is sampled."""
    samples_every: Positive = 10
    """Optimiser steps from one that is sampled to the next."""
