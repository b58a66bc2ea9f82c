"""MLflow: a run in a SQLite file or at a tracking server; samples are artifacts."""

import re
import tempfile
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric

from dart_data.tracker.points import SAMPLES, MetricPoint, SampleTrajectory, TrackerRun

TAG = "dart_streams.run"
MAX_METRICS = 500
"""Maximum number of metrics of a request; servers accept 1,000."""
ILLEGAL = re.compile(r"[^\w\-./: ]")


class MlflowRun(TrackerRun):
    """The run of a name in an experiment, created at the first start. Repeated metrics are stored once."""

    flush_s = 1.0

    def __init__(self, uri: str, artifacts: str | None, project: str, run: str) -> None:
        self.client = MlflowClient(tracking_uri=uri)
        known = self.client.get_experiment_by_name(project)
        experiment = known.experiment_id if known else self.client.create_experiment(project, artifacts)
        runs = self.client.search_runs([experiment], f"tags.`{TAG}` = '{run}'")
        self.run_id = (runs or [self.client.create_run(experiment, tags={TAG: run}, run_name=run)])[0].info.run_id
        self.metrics: list[Metric] = []

    def log(self, point: MetricPoint) -> None:
        """Log the metrics of a step."""
        self.metrics += [
            Metric(ILLEGAL.sub("_", name), value, point.at_ms, point.step) for name, value in point.values.items()
        ]

    def log_sample(self, sample: SampleTrajectory) -> None:
        """Log a sample as two artifacts, a picture and a text."""
        with tempfile.TemporaryDirectory() as folder:
            for suffix, data in ((".png", sample.picture), (".txt", sample.caption.encode())):
                file = Path(folder) / f"step-{sample.step:06d}-{sample.number}{suffix}"
                file.write_bytes(data)
                self.client.log_artifact(self.run_id, str(file), SAMPLES)

    def flush(self) -> None:
        """Send the logged metrics."""
        while self.metrics:
            self.client.log_batch(self.run_id, metrics=self.metrics[:MAX_METRICS])
            del self.metrics[:MAX_METRICS]

    def close(self) -> None:
        """Flush, and mark the run as finished."""
        super().close()
        self.client.set_terminated(self.run_id)
