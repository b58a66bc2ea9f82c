"""Requests and their replies: this process's own partition of ``actions``, which it may share with other hosts.

The partition is read from its end on, without a group: replies to a process that has died are nobody's. A reply that
nobody here waits for (another host's, a late or a repeated one) is skipped by its key, without being decoded.
"""

import asyncio
import zlib
from types import TracebackType
from typing import Self

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, consumer, event_of, start_within
from dart_streams.bus.codec import Undecodable
from dart_streams.config import Config
from dart_streams.telemetry.stall_detector import StallDetector
from topics import action_requests, actions
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from workers.env import metrics as instruments

log = structlog.get_logger()

CHECK_S = 1.0


class UnreadableReply(Exception):
    """The reply to a request was no action; it is among the dead letters."""


class Replies:
    """Asks, and hands each reply to the one who asked. ``partition`` is where rollout workers must reply."""

    def __init__(self, config: Config, worker_id: str, publisher: Publisher) -> None:
        self.bus = config.bus
        self.worker_id = worker_id
        self.publisher = publisher
        self.partition = 0
        self.waiting = StallDetector(log, f"replies on {self.bus.prefix}{actions.TOPIC.name}", config.telemetry.stall_s)
        self.records: AIOKafkaConsumer = consumer(
            config.bus, group=None, client_id=f"{worker_id}-replies", auto_offset_reset="latest"
        )
        self._asked: dict[bytes, asyncio.Future[ActionResponse]] = {}

    async def __aenter__(self) -> Self:
        """Stand at the end of the partition; raise ServiceUnavailable if the broker or the topic is not there."""
        partitions = await self.publisher.partitions_of(actions.TOPIC)
        self.partition = zlib.crc32(self.worker_id.encode()) % partitions
        await start_within(self.records, self.bus)
        place = TopicPartition(self.bus.prefix + actions.TOPIC.name, self.partition)
        self.records.assign([place])
        await self.records.seek_to_end(place)
        await self.records.position(place)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.records.stop()

    async def ask(self, request: ActionRequest, timeout_s: float) -> ActionResponse:
        """Send a request and return its reply.

        Raises
        ------
        TimeoutError
            If none came within ``timeout_s`` of the request's being sent.
        UnreadableReply
            If what came is no action.
        """
        key = request.request_id.encode()
        reply = self._asked[key] = asyncio.get_running_loop().create_future()
        if len(self._asked) == 1:
            self.waiting.note_arrival()
        outcome = instruments.abandoned
        try:
            instruments.sent.add(1)
            async with asyncio.timeout(timeout_s):
                await self.publisher.publish(action_requests.TOPIC, request)
                action = await reply
            outcome = instruments.answered
            return action
        except TimeoutError:
            outcome = instruments.timed_out
            raise
        except UnreadableReply:
            outcome = instruments.answered
            raise
        finally:
            outcome.add(1)
            del self._asked[key]

    async def listen(self) -> None:
        """Hand out replies, for ever."""
        async for record in self.records:
            await self._hand_out(record)

    async def watch(self) -> None:
        """Report a wait past its bound, for ever; without a request under way nobody waits."""
        while True:
            await asyncio.sleep(CHECK_S)
            if self._asked:
                self.waiting.check()

    async def _hand_out(self, record: ConsumerRecord) -> None:
        asker = self._asked.get(record.key)
        if asker is None or asker.done():
            instruments.ignored.add(1)
            return
        try:
            action: ActionResponse = event_of(actions.TOPIC, record)
        except Undecodable as why:
            await dead_letters.send(self.publisher, actions.TOPIC, record, str(why))
            if not asker.done():
                asker.set_exception(UnreadableReply(str(why)))
            return
        self.waiting.note_arrival(action.worker_id)
        asker.set_result(action)
