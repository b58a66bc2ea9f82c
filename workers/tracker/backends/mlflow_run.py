"""MLflow: a run in a SQLite file, or at a tracking server; samples are artifacts."""

import re
import tempfile
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric

from workers.tracker.points import SAMPLES, MetricPoint, SampleTrajectory

TAG = "dart_streams.run"
AT_ONCE = 500
"""Metrics of one request; a server takes 1,000."""
ILLEGAL = re.compile(r"[^\w\-./: ]")


class MlflowRun:
    """The run of this name in an experiment, made by the first start of the tracker. A metric twice is kept once."""

    flush_s = 1.0

    def __init__(self, uri: str, artifacts: str | None, project: str, run: str) -> None:
        self.client = MlflowClient(tracking_uri=uri)
        found = self.client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self.client.create_experiment(project, artifacts)
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
        """Send what was logged."""
        while self.metrics:
            self.client.log_batch(self.run_id, metrics=self.metrics[:AT_ONCE])
            del self.metrics[:AT_ONCE]

    def close(self) -> None:
        """Flush, and mark the run as finished."""
        self.flush()
        self.client.set_terminated(self.run_id)
