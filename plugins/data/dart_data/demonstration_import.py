"""Imports demonstrations: stores their screenshots, publishes observations, and awaits the recorder's announcements.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| trajectories, new ones | screenshots (store), observations | announcements, bounded | a recorder on the same prefix |

Ids derive from the episodes' ids, so a second import replaces the rows of the first.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer

from dart_data.demonstrations import NotDemonstrable, Placed, as_demonstration
from dart_data.episode_columns import Progress, RecordedEpisode
from dart_streams.bus.clients import POLL_TIMEOUT_MS, Publisher, event_of, open_topics
from dart_streams.bus.codec import Undecodable, Unencodable
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.deadline import Deadline
from dart_streams.errors import UserError
from dart_streams.store import AsyncStore, open_store
from topics import observations, trajectories

CLIENT = "data-import"
WINDOW = 128
"""Most demonstrations that are published and not yet announced."""

log = structlog.get_logger()


class ImportResult(msgspec.Struct, kw_only=True):
    """Counts of recorded demonstrations and steps, and of episodes left out by reason, with one as an ``example``."""

    demonstrations: int = 0
    steps: int = 0
    left_out: dict[str, int] = {}
    example: str = ""


def select_demonstrations(
    placed: Iterable[Placed], config: Config, tasks: TaskSet, result: ImportResult, report: Progress
) -> Iterator[RecordedEpisode]:
    """Yield the demonstrations among episodes; count the others in ``result`` and ``report`` the episodes read."""
    left_out: Counter[str] = Counter()
    for number, (place, episode) in enumerate(placed, 1):
        try:
            yield as_demonstration(episode, config, tasks)
        except NotDemonstrable as error:
            left_out[error.reason] += 1
            result.left_out = dict(left_out)
            result.example = result.example or f"{place}: {error}"
        report(number)


def run(config: Config, tasks: TaskSet, placed: Iterable[Placed], report: Progress = lambda _: None) -> ImportResult:
    """Import the demonstrations among episodes; return when the recorder has announced each.

    Raises UserError if none is announced for ``evaluation.timeout_s``, or there is none among the episodes, and
    ServiceUnavailable if the broker or the database does not answer.
    """
    result = ImportResult()
    asyncio.run(publish(config, select_demonstrations(placed, config, tasks, result, report), result))
    if not result.demonstrations:
        reason = f", for instance {result.example}" if result.example else ""
        raise UserError(f"there is no demonstration in the set{reason}")
    return result


async def publish(config: Config, episodes: Iterator[RecordedEpisode], result: ImportResult) -> None:
    """Publish demonstrations, at most :data:`WINDOW` ahead of the recorder."""
    async with contextlib.AsyncExitStack() as resources:
        publisher = await resources.enter_async_context(Publisher(config.bus, CLIENT))
        followed = open_topics(config.bus, publisher, (trajectories.TOPIC,), at_end=True)
        announced = await resources.enter_async_context(followed)
        store = await open_store(config, resources)
        pending = PendingAnnouncements(config, announced, result)
        for episode in episodes:
            await pending.until_fewer_than(WINDOW)
            try:
                await publish_episode(publisher, store, episode)
            except Unencodable as error:
                raise UserError(
                    f"an episode of {episode.observations[0].order.task_id} can't be imported: {error}. Shorten its "
                    "instruction or its answers, or leave it out"
                ) from None
            pending.add(episode)
        await pending.until_fewer_than(1)


async def publish_episode(publisher: Publisher, store: AsyncStore, episode: RecordedEpisode) -> None:
    """Make the screenshots durable, then publish the observations in order."""
    refs = {step.screenshot.sha256: step.screenshot for step in episode.observations if step.screenshot is not None}
    await asyncio.gather(
        *(store.put_blob(episode.images[name], ref.media_type, ref.width, ref.height) for name, ref in refs.items())
    )
    await asyncio.gather(*(publisher.publish(observations.TOPIC, step) for step in episode.observations))


class PendingAnnouncements:
    """Number of steps of each demonstration without an announcement, by trajectory id."""

    def __init__(self, config: Config, records: AIOKafkaConsumer, result: ImportResult) -> None:
        self.config = config
        self.records = records
        self.result = result
        self.steps: dict[str, int] = {}

    def add(self, episode: RecordedEpisode) -> None:
        """Add a demonstration that was published."""
        self.steps[episode.observations[0].trajectory_id] = len(episode.observations) - 1

    async def until_fewer_than(self, count: int) -> None:
        """Return when fewer are pending; raise :class:`UserError` if ``evaluation.timeout_s`` passes without one."""
        bound_s = self.config.evaluation.timeout_s
        silence = Deadline(bound_s)
        while len(self.steps) >= count:
            if await self._poll():
                silence = Deadline(bound_s)
            elif silence.expired:
                raise UserError(
                    f"no demonstration was recorded for {bound_s:g} s ({self.result.demonstrations} are, "
                    f"{len(self.steps)} wait): start `dart-streams worker recorder` for bus.prefix "
                    f"{self.config.bus.prefix!r}, then import the set again"
                )

    async def _poll(self) -> bool:
        polled = await self.records.getmany(timeout_ms=POLL_TIMEOUT_MS)
        before = len(self.steps)
        for record in itertools.chain.from_iterable(polled.values()):
            try:
                steps = self.steps.pop(event_of(trajectories.TOPIC, record).trajectory_id, None)
            except Undecodable as error:
                log.warning("not a trajectory", offset=record.offset, reason=str(error))
                continue
            if steps is not None:
                self.result.demonstrations += 1
                self.result.steps += steps
        return len(self.steps) < before
