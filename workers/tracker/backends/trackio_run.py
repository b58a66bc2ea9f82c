"""trackio: a run in its local SQLite file. A point twice is kept once, for each has an id."""

import io
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from PIL import Image

from workers.tracker.points import SAMPLES, MetricPoint, SampleTrajectory


class TrackioRun:
    """The run of this name in a project, in ``folder``.

    Points are written through the library's storage and not its ``log``, which writes later, in a thread, and gives
    them the time at which they are logged.
    """

    flush_s = 1.0

    def __init__(self, folder: Path, project: str, run: str) -> None:
        os.environ["TRACKIO_DIR"] = str(folder)  # the library reads it when it is imported
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
        """Write what was logged."""
        if not self.points:
            return
        found = [point for point, _ in self.points.values()]
        self.library.SQLiteStorage.bulk_log(
            project=self.project,
            run=self.run,
            run_id=self.run,
            metrics_list=[values for _, values in self.points.values()],
            steps=[point.step for point in found],
            timestamps=[datetime.fromtimestamp(point.at_ms / 1000, UTC).isoformat() for point in found],
            log_ids=[f"{self.run}/{name}/{point.at_ms}" for name, (point, _) in self.points.items()],
        )
        self.points.clear()

    def close(self) -> None:
        """Write what was logged."""
        self.flush()
