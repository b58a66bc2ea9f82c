"""TensorBoard: event files in a folder. Readers drop the earlier values of repeated steps."""

import io
import sys
import time
from pathlib import Path

from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from dart_data.tracker.points import SAMPLES, MetricPoint, SampleTrajectory, TrackerRun

RGB = 3


class TensorboardRun(TrackerRun):
    """A folder of event files, one per start of the tracker."""

    flush_s = 1.0

    def __init__(self, folder: Path) -> None:
        self.newest = sys.maxsize if any(folder.glob("events.out.tfevents.*")) else -1
        self.writer = EventFileWriter(str(folder))

    def log(self, point: MetricPoint) -> None:
        """Log the metrics of a step."""
        if point.step <= self.newest:
            # Readers drop their values from here on, after a restart of this process or of the trainer.
            start = SessionLog(status=SessionLog.START)
            self.writer.add_event(Event(wall_time=time.time(), step=point.step, session_log=start))
        self.newest = point.step
        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
        self._add(point, Summary(value=values))

    def log_sample(self, sample: SampleTrajectory) -> None:
        """Log a sample as an image, which shows its actions."""
        with Image.open(io.BytesIO(sample.picture)) as image:
            width, height = image.size
        picture = Summary.Image(width=width, height=height, colorspace=RGB, encoded_image_string=sample.picture)
        self._add(sample, Summary(value=[Summary.Value(tag=f"{SAMPLES}/{sample.number}", image=picture)]))

    def flush(self) -> None:
        """Write all logged values to the file."""
        self.writer.flush()

    def close(self) -> None:
        """End the file."""
        self.writer.close()

    def _add(self, at: MetricPoint | SampleTrajectory, summary: Summary) -> None:
        self.writer.add_event(Event(wall_time=at.at_ms / 1000, step=at.step, summary=summary))
