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
    """Sample trajectories of an optimizer step that is sampled."""
    samples_every: Positive = 10
    """Optimizer steps from one that is sampled to the next."""

    def __post_init__(self) -> None:
        """Refuse what another tool would ignore silently, and an address where a folder is meant."""
        if self.changed and not self.tool:
            named = " and ".join(sorted(self.changed))
            raise ValueError(f"{named} can't be used without tool: set it, or leave out what is beside it")
        if not self.offline and self.tool != "wandb":
            raise ValueError(f'offline = false is for tool = "wandb", not for tool = "{self.tool}": leave it out')
        if "://" in self.target and self.tool != "mlflow":
            raise ValueError(
                f'target = "{self.target}" is an address, and tool = "{self.tool}" writes to a folder: name one, or '
                'set tool = "mlflow", which has servers'
            )
