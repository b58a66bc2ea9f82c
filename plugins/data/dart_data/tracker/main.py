"""The tracker: copies the metrics of optimizer steps and sample trajectories to an experiment tracker.

=============  ==================================================================================================
consumes       ``trained`` (group ``tracker-TOOL``); steps and screenshots of samples from the store
produces       records of its tool: event files, a database, or requests to a server
waits for      optimizer steps; the database, ``store.wait_s`` at most; its tool
unblocked by   the trainer
=============  ==================================================================================================

The trainer never waits for it. It commits an offset once its tool has made the earlier steps durable. After a crash it
resumes there and repeats at most the steps after the last flush.
"""

import asyncio
import contextlib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog
from aiokafka import ConsumerRecord, TopicPartition

from dart_data.tracker.filmstrip import caption_of, draw_filmstrip
from dart_data.tracker.points import SampleTrajectory, TrackerRun, point_of, sample_trajectories
from dart_streams.bus.clients import Publisher, event_of
from dart_streams.bus.codec import Undecodable
from dart_streams.bus.topic_watch import watch_topics
from dart_streams.config import Config
from dart_streams.config.tracker import TrackerTool
from dart_streams.errors import ConfigError
from dart_streams.store import AsyncStore, MissingBlob, open_store
from topics import trained
from topics.trained import TrainedStep
from topics.transitions import is_ignored
from workers.runtime import lifecycle
from workers.runtime.batch_consumer import BatchConsumer

log = structlog.get_logger()

GROUP = "tracker"
BATCH = 200


async def connect(config: Config, worker_id: str, resources: contextlib.AsyncExitStack) -> lifecycle.Worker:
    """Open the tool's run and resume from the committed offset.

    Raises ConfigError if no tracker is configured, and ServiceUnavailable if the broker or the database is away.
    """
    settings = config.tracker
    if not settings.tool:
        raise ConfigError("tracker.tool is not set: choose tensorboard, mlflow, wandb or trackio")
    opened_run = await asyncio.to_thread(open_run, config, settings.tool)
    resources.push_async_callback(asyncio.to_thread, opened_run.close)
    publisher = await resources.enter_async_context(Publisher(config.bus, worker_id))
    await publisher.partitions_of(trained.TOPIC)
    store = await open_store(config, resources, cache_mb=0) if settings.samples else None
    tracked = await resources.enter_async_context(TrackedRun(config, worker_id, opened_run, store))
    log.info("tracking", tool=settings.tool, target=str(target_of(config)))
    topics = functools.partial(watch_topics, publisher, [trained.TOPIC])
    return lifecycle.Worker(tracked.serve, {"topics": topics}, tracked.find_lack)


def target_of(config: Config) -> str:
    """Return the folder or the tracking URI of the tool."""
    return config.tracker.target or str((config.run.folder / "tracker").absolute())


def open_run(config: Config, tool: TrackerTool) -> TrackerRun:
    """Return the tool's run; its library is imported here, because only .venv/data has it."""
    target, project, name = target_of(config), config.tracker.project, config.run.id
    match tool:
        case "tensorboard":
            from dart_data.tracker.backends.tensorboard_files import TensorboardRun

            return TensorboardRun(Path(target) / name)
        case "mlflow":
            from dart_data.tracker.backends.mlflow_run import MlflowRun

            if "://" in target:
                return MlflowRun(target, None, project, name)
            Path(target).mkdir(parents=True, exist_ok=True)
            artifacts = (Path(target).absolute() / "artifacts").as_uri()
            return MlflowRun(f"sqlite:///{Path(target).absolute()}/mlflow.db", artifacts, project, name)
        case "wandb":
            from dart_data.tracker.backends.wandb_run import WandbRun

            return WandbRun(Path(target), project, name, offline=config.tracker.offline)
        case _:
            from dart_data.tracker.backends.trackio_run import TrackioRun

            return TrackioRun(Path(target), project, name)


class TrackedRun(BatchConsumer):
    """Logs the steps of each batch; the tool makes them durable before a commit."""

    max_records = BATCH

    def __init__(self, config: Config, worker_id: str, tool: TrackerRun, store: AsyncStore | None) -> None:
        super().__init__(config, worker_id, trained.TOPIC, f"{GROUP}-{config.tracker.tool}")
        self.settings = config.tracker
        self.commit_interval_s = tool.flush_s
        self.tool = tool
        self.store = store
        self.epoch = -1

    async def handle(self, polled: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> str:
        """Log the steps of a batch, and return the place of the last."""
        for record in (record for batch in polled.values() for record in batch):
            try:
                step: TrainedStep = event_of(trained.TOPIC, record)
            except Undecodable as error:
                log.warning("not an optimizer step", offset=record.offset, reason=str(error))
            else:
                await self._track(step)
        return f"{record.topic}@{record.offset}"

    async def flush(self) -> None:
        """Make all logged steps durable in the tool."""
        await asyncio.to_thread(self.tool.flush)

    async def _track(self, step: TrainedStep) -> None:
        if is_ignored(step.epoch, self.epoch):
            return
        self.epoch = step.epoch
        self.tool.log(point_of(step))
        for number, trajectory_id in enumerate(sample_trajectories(step, self.settings)):
            if (sample := await self._sample(step, number, trajectory_id)) is not None:
                await asyncio.to_thread(self.tool.log_sample, sample)

    async def _sample(self, step: TrainedStep, number: int, trajectory_id: str) -> SampleTrajectory | None:
        """Return a trajectory as a sample; None if the store no longer has it."""
        assert self.store is not None
        observations = await self.store.steps(trajectory_id)
        try:
            refs = {one.screenshot.sha256: one.screenshot for one in observations if one.screenshot is not None}
            data = await asyncio.gather(*(self.store.get_blob(ref) for ref in refs.values()))
        except MissingBlob as missing:
            log.warning("sample left out", trajectory=trajectory_id, reason=str(missing))
            return None
        if not observations:
            return None
        return SampleTrajectory(
            step=step.train_step,
            at_ms=step.at_ms,
            number=number,
            caption=caption_of(observations),
            picture=await asyncio.to_thread(draw_filmstrip, observations, dict(zip(refs, data, strict=True))),
        )
