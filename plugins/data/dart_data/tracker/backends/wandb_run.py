"""Weights & Biases: a run at its server, or in files for ``wandb sync``.

The library confirms durability only at the end of a run, so a flush finishes the run and the next point resumes it.
Offline, each resumption is a separate folder with the same run id.
"""

import io
from pathlib import Path
from typing import Any

import wandb
from PIL import Image
from wandb.errors import UsageError

from dart_data.tracker.points import SAMPLES, MetricPoint, SampleTrajectory, TrackerRun
from dart_streams.errors import ConfigError

AXIS = "train_step"


class WandbRun(TrackerRun):
    """The run of an id in a project. Logging raises ConfigError if the run is not ``offline`` and has no key."""

    flush_s = 300.0

    def __init__(self, folder: Path, project: str, run: str, *, offline: bool) -> None:
        self.folder = folder
        self.project = project
        self.run_id = run
        self.offline = offline
        self.run: Any = None
        folder.mkdir(parents=True, exist_ok=True)

    def log(self, point: MetricPoint) -> None:
        """Log the metrics of a step."""
        self._resumed().log({**point.values, AXIS: point.step})

    def log_sample(self, sample: SampleTrajectory) -> None:
        """Log a sample as an image with its text."""
        with Image.open(io.BytesIO(sample.picture)) as image:
            picture = wandb.Image(image, caption=sample.caption)
        self._resumed().log({f"{SAMPLES}/{sample.number}": picture, AXIS: sample.step})

    def flush(self) -> None:
        """Finish the run, so that all logged values are at the server or in files."""
        if self.run is not None:
            self.run.finish()
            self.run = None

    def _resumed(self) -> Any:
        if self.run is None:
            settings = wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, x_disable_meta=True, x_disable_stats=True
            )
            try:
                self.run = wandb.init(
                    project=self.project,
                    id=self.run_id,
                    name=self.run_id,
                    dir=str(self.folder),
                    mode="offline" if self.offline else "online",
                    resume="allow",
                    settings=settings,
                )
            except UsageError as error:
                raise ConfigError(
                    f"tracker.offline = false needs a wandb key ({error}): set WANDB_API_KEY, or tracker.offline = true"
                ) from None
            self.run.define_metric("*", step_metric=AXIS)
        return self.run
