"""Faust's Kafka transport with overrides, each for a defect of Faust (0.15.3).

docs/concepts/data-manager.md has the test that fails without each.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from faust.transport.consumer import RecordMap, ensure_TP
from faust.transport.drivers import aiokafka
from faust.types import TP, Message
from mode import Service
from mode.utils.queues import FlowControlEvent

from dart_streams.bus.clients import COMMIT_TIMEOUT_S

FETCH_MAX_WAIT_MS = 100
"""A burst of 1,000 trajectories takes the agents 1.3 to 1.6 s; with the 1,500 ms of Faust 3.4 to 4.2 s."""
CHECK_INTERVAL_S = 1.0

log = structlog.get_logger()


class Flow(FlowControlEvent):
    """Flow control whose resumption of an active flow keeps the streams' buffers.

    Defect: Faust resumes the flow to read changelogs and again after it sought the inputs; the second time clears the
    buffers, so records since the seek are lost.
    """

    def resume(self) -> None:
        """Resume a suspended flow, which clears the buffers; leave an active one alone."""
        if not self.is_active():
            super().resume()


class ConsumerThread(aiokafka.AIOKafkaConsumerThread):
    """Faust's client thread with a shorter, lossless fetch, and non-blocking access to the client's position.

    Defects: the fetch wait is fixed at 1.5 s, during which the client fetches no other partition of that broker.
    Records fetched while the flow is suspended are dropped and only inputs are sought back, so a recovery may wait
    forever for changelog records. After an unknown error aiokafka (0.14) rejoins its group only once the error was
    read, which Faust never does; a replaced member gets such an error. A commit of a member that has to join again is
    tried forever, also at the stop. Errors at the client's stop leave the thread as a traceback. A CancelledError of a
    pending fetch makes Faust wait a minute for the thread.
    """

    consumer: aiokafka.Consumer

    @Service.task
    async def _read_group_errors(self) -> None:
        """Read the consumer group's errors, so that it is rejoined; raise a final one."""
        coordinator = self._ensure_consumer()._coordinator
        while not self.should_stop:
            await self.sleep(CHECK_INTERVAL_S)
            try:
                coordinator.check_errors()
            except KafkaError as error:
                if coordinator._coordination_task.done():
                    raise
                coordinator.reset_generation()  # Its member id may be the reason.
                log.warning("the consumer group answered with an error: joining it again", reason=str(error))

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        """Commit offsets; return False without an answer in time. What is not committed is read again."""
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                return await super()._commit(offsets)
        except TimeoutError:
            log.warning("offsets not committed", timeout_s=COMMIT_TIMEOUT_S)
            return False

    async def on_thread_stop(self) -> None:
        """Stop the client; close its connections if that fails."""
        try:
            await super().on_thread_stop()
        except (KafkaError, asyncio.CancelledError) as error:
            log.warning("the consumer's client ended with an error", error=repr(error))
            await self._ensure_consumer()._client.close()

    def next_offset(self, tp: TP) -> int | None:
        """Return the client's next offset of a partition, None if it is unknown or unassigned."""
        subscription = self._ensure_consumer()._subscription.subscription
        assignment = subscription.assignment if subscription is not None else None
        state = assignment.state_value(tp) if assignment is not None else None
        return state.position if state is not None and state.has_valid_position else None

    async def _fetch_records(
        self,
        consumer: AIOKafkaConsumer,
        active_partitions: set[TP],
        timeout: float | None = None,  # noqa: ASYNC109 - as Faust has it
        max_records: int | None = None,
    ) -> RecordMap:
        """Return the fetched records; if the flow is suspended, none, and seek their partitions back."""
        records = await super()._fetch_records(consumer, active_partitions, timeout=timeout, max_records=max_records)
        if self.consumer.flow_active:
            return records
        for tp, taken in records.items():
            if taken and tp in consumer.assignment():
                consumer.seek(tp, taken[0].offset)
                log.info("sought back: the flow is suspended", topic=tp.topic, partition=tp.partition, taken=len(taken))
        return {}

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_MAX_WAIT_MS
        return consumer


class Consumer(aiokafka.Consumer):
    """Faust's consumer with lasting seeks, also for inputs whose committed offset is outside the log.

    Defects: after a seek Faust delivers records fetched before, and takes the sought ones for repeats: a recovery never
    ends, and inputs are skipped. Without a committed offset it keeps its position, so records dropped in a rebalance
    are lost. An offset beyond the end, of a recreated topic, turns every record into a repeat.
    """

    _thread: ConsumerThread

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:  # noqa: ASYNC109 - as Faust has it
        """Yield the fetched records, without those that a later seek makes the client fetch again."""
        async for tp, message in super().getmany(timeout):
            taken = self._thread.next_offset(tp)
            if taken is not None and message.offset < taken:
                yield tp, message

    async def perform_seek(self) -> None:
        """Seek each input to its committed offset, or to its beginning if the log does not contain that."""
        await super().perform_seek()
        inputs = {tp for tp in self.assignment() if not self._is_changelog_tp(tp)}
        if not inputs:
            return
        begins, ends = await self.earliest_offsets(*inputs), await self.highwaters(*inputs)
        begins, ends = ({ensure_TP(tp): offset for tp, offset in found.items()} for found in (begins, ends))
        outside = {tp for tp in inputs if not begins[tp] <= (self._committed_offset[tp] or -1) <= ends[tp]}
        for tp in outside:
            self._committed_offset[tp] = None
        if outside:
            await self.seek_wait({tp: begins[tp] for tp in outside})


class Producer(aiokafka.Producer):
    """Faust's producer, but idempotent.

    Defect: without transactions, a record retried after a lost response may be duplicated late.
    """

    def _settings_extra(self) -> Mapping[str, Any]:
        return {"acks": "all", "enable_idempotence": True}


class Transport(aiokafka.Transport):
    """Faust's transport with this consumer and producer."""

    Consumer = Consumer
    Producer = Producer
