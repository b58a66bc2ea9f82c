"""Requests actions from the policy: a request on ``action-requests``, its response on this worker's partition.

A person is not asked (:meth:`PolicyClient.await_person`): they read ``observations``, and respond under the known id.

The partition of ``actions`` may be shared with other workers. It is read from its end, without a group. A response
without a pending request here (another worker's, a late or a duplicate one) is skipped by its key, undecoded.
"""

import asyncio
import zlib
from typing import Self

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaTimeoutError

from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, create_consumer, event_of, has_reached, start_within
from dart_streams.bus.codec import Undecodable
from dart_streams.config import Config
from dart_streams.telemetry.stall_detector import StallDetector
from topics import action_requests, actions
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.rollout_orders import PersonLease
from workers.env import metrics

log = structlog.get_logger()

POLL_TIMEOUT_MS = 1000
SLICES = 4
"""Parts of a lease, each of which passes while this process runs. One that stands still counts at most one of them."""


class InvalidResponse(Exception):
    """The response to a request could not be decoded; it is a dead letter."""


class PolicyClient:
    """Matches responses to requests by request id; rollout workers respond on ``partition``."""

    def __init__(self, config: Config, worker_id: str, publisher: Publisher) -> None:
        self.bus = config.bus
        self.worker_id = worker_id
        self.publisher = publisher
        self.partition = 0
        self.name = config.bus.prefix + actions.TOPIC.name
        self.stalls = StallDetector(log, f"responses on {self.name}", config.telemetry.stall_s)
        self.records: AIOKafkaConsumer = create_consumer(
            config.bus, group=None, client_id=f"{worker_id}-replies", auto_offset_reset="latest"
        )
        self._pending: dict[bytes, asyncio.Future[ActionResponse]] = {}
        self._people: dict[bytes, str] = {}
        self._silent: dict[bytes, int] = {}
        self._polled = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Seek to the end of the partition; raise ServiceUnavailable if the broker or the topic is not there."""
        partitions = await self.publisher.partitions_of(actions.TOPIC)
        self.partition = zlib.crc32(self.worker_id.encode()) % partitions
        await start_within(self.records, self.bus)
        place = TopicPartition(self.name, self.partition)
        self.records.assign([place])
        await self.records.seek_to_end(place)
        await self.records.position(place)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.records.stop()

    async def request(self, request: ActionRequest, timeout_s: float) -> ActionResponse:
        """Publish a request and return its response.

        Raises TimeoutError after ``timeout_s``, InvalidResponse if the response cannot be decoded.
        """
        key = request.request_id.encode()
        response = self._pending[key] = asyncio.get_running_loop().create_future()
        if len(self._pending) == 1:
            self.stalls.note_arrival()
        outcome = metrics.abandoned
        metrics.sent.add(1)
        try:
            async with asyncio.timeout(timeout_s):
                await self.publisher.publish(action_requests.TOPIC, request)
                return await response
        except TimeoutError:
            outcome = metrics.timed_out
            raise
        finally:
            (metrics.answered if response.done() and not response.cancelled() else outcome).add(1)
            del self._pending[key]

    async def await_person(self, request_id: str, lease: PersonLease) -> ActionResponse:
        """Return the response that the person of a lease sends under ``request_id``.

        Raises TimeoutError if they show no sign of life for its time, InvalidResponse for one that can't be decoded.
        """
        key = request_id.encode()
        response = self._pending[key] = asyncio.get_running_loop().create_future()
        self._people[key], self._silent[key] = lease.person, 0
        self.stalls.note_arrival()
        try:
            while not response.done():
                await asyncio.wait([response], timeout=lease.lease_ms / 1000 / SLICES)
                self._silent[key] += 1
                if await self._is_gone(key) and not response.done():
                    raise TimeoutError
            return response.result()
        finally:
            del self._pending[key], self._people[key], self._silent[key]

    async def _is_gone(self, key: bytes) -> bool:
        """Return whether a lease is over, by all responses that the broker has; a broker that is away ends none."""
        if self._silent[key] <= SLICES:
            return False
        try:
            ends = await self.records.end_offsets(self.records.assignment())
        except KafkaTimeoutError:
            return False
        while not await has_reached(self.records, ends):
            await self._polled.wait()
        return self._silent[key] > SLICES

    async def read_responses(self) -> None:
        """Resolve requests with their responses, and report an overdue wait for them, until cancelled."""
        while True:
            for records in (await self.records.getmany(timeout_ms=POLL_TIMEOUT_MS)).values():
                for record in records:
                    await self._resolve(record)
            self._polled.set()
            self._polled.clear()
            if self._pending:
                self.stalls.check()

    async def _resolve(self, record: ConsumerRecord) -> None:
        waiting = self._pending.get(record.key)
        if waiting is None or waiting.done():
            metrics.ignored.add(1)
            return
        try:
            response: ActionResponse = event_of(actions.TOPIC, record)
        except Undecodable as error:
            await dead_letters.send(self.publisher, actions.TOPIC, record, str(error))
            if not waiting.done():
                waiting.set_exception(InvalidResponse(str(error)))
            return
        person = self._people.get(record.key)
        if person is not None and response.worker_id != person:
            metrics.ignored.add(1)
            return
        self.stalls.note_arrival(response.worker_id)
        if not response.alive:
            waiting.set_result(response)
        elif person is not None:
            self._silent[record.key] = 0
