"""The tracker, which copies a run's metrics and sample trajectories to an experiment tracker."""

from typing import Literal

from dart_streams.config.section import Count, Optional, Positive

TrackerTool = Literal["", "tensorboard", "mlflow", "wandb", "trackio"]


class Tracker(Optional, frozen=True):
    """A process that copies metrics and samples to an experiment tracker, asynchronously. Needs ``make data``."""

    tool: TrackerTool = ""
    """The tool; empty: none."""
    project: str = "dart_streams"
    """The run's project, or experiment, in the tool."""
    target: str = ""
    """A folder, or MLflow's tracking URI; empty: ``tracker`` in the run's folder."""
    offline: bool = True
    """With wandb, write files for ``wandb sync``, not to its server (with ``WANDB_API_KEY``)."""
    samples: Count = 2
    """Sample trajectories of a sampled optimizer step."""
    samples_every: Positive = 10
    """Optimizer steps between sampled ones."""

    def __post_init__(self) -> None:
        """Refuse keys that the tool would ignore, and an address in place of a folder."""
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
