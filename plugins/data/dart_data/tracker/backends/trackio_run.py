"""trackio: a run in its local SQLite file. Repeated points have the same id and are stored once."""

import io
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from PIL import Image

from dart_data.tracker.points import SAMPLES, MetricPoint, SampleTrajectory, TrackerRun


class TrackioRun(TrackerRun):
    """The run of a name in a project, in ``folder``.

    Points go to the library's storage directly: its ``log`` writes in a thread, with the time of the call.
    """

    flush_s = 1.0

    def __init__(self, folder: Path, project: str, run: str) -> None:
        os.environ["TRACKIO_DIR"] = str(folder)  # read by the library at its import
        import trackio

        folder.mkdir(parents=True, exist_ok=True)
        self.library: Any = trackio
        self.project = project
        self.run = run
        self.points: dict[str, tuple[MetricPoint | SampleTrajectory, dict[str, Any]]] = {}

    def log(self, point: MetricPoint) -> None:
        """Log the metrics of a step."""
        self.points[f"{point.step}"] = (point, point.values)

    def log_sample(self, sample: SampleTrajectory) -> None:
        """Log a sample as an image with its text."""
        with Image.open(io.BytesIO(sample.picture)) as image:
            picture = self.library.Image(image.copy(), caption=sample.caption)
        picture._save(self.project, self.run, sample.step)
        key = f"{SAMPLES}/{sample.number}"
        self.points[f"{sample.step}/{key}"] = (sample, {key: picture._to_dict()})

    def flush(self) -> None:
        """Write the logged values."""
        if not self.points:
            return
        points = [point for point, _ in self.points.values()]
        self.library.SQLiteStorage.bulk_log(
            project=self.project,
            run=self.run,
            run_id=self.run,
            metrics_list=[values for _, values in self.points.values()],
            steps=[point.step for point in points],
            timestamps=[datetime.fromtimestamp(point.at_ms / 1000, UTC).isoformat() for point in points],
            log_ids=[f"{self.run}/{name}/{point.at_ms}" for name, (point, _) in self.points.items()],
        )
        self.points.clear()
