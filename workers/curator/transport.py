"""Faust's Kafka transport, with nine overrides. Each names the defect of Faust (0.15.3) that it answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Generator, Mapping
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from faust.transport.consumer import RecordMap, ensure_TP
from faust.transport.drivers import aiokafka
from faust.types import TP, Message
from mode import Service
from mode.services import WaitResults
from mode.utils.queues import FlowControlEvent

FETCH_MAX_WAIT_MS = 100
CHECK_INTERVAL_S = 1.0
"""Between two looks whether the consumer group answered with an error."""

log = structlog.get_logger()


class Flow(FlowControlEvent):
    """Faust's flow control, but resuming an active flow keeps what the streams' buffers hold.

    Defect: Faust resumes the flow once to read changelogs and again after it has sought the inputs, and the second time
    clears the buffers. Records that arrived since the seek are lost, and this process waits for what they would cause.
    """

    def resume(self) -> None:
        """Resume a suspended flow, which clears the buffers; leave an active one alone."""
        if not self.is_active():
            super().resume()


class DirectDelivery(Service):
    """A service that runs what it waits for without a task, if that does not block.

    Defect: Faust creates four tasks for each record, to deliver it and to notice meanwhile that the flow is suspended
    or the consumer stops. Nearly always there is room in the buffer at once, and there is no meanwhile.
    """

    async def wait_first(self, *coros: Any, **bound: Any) -> Any:
        """Wait for the first of ``coros``."""
        delivery, *others = coros
        if not isinstance(delivery, Coroutine):
            return await super().wait_first(*coros, **bound)
        try:
            future = delivery.send(None)
        except BaseException as end:
            for other in others:
                other.close()
            if isinstance(end, StopIteration):
                return WaitResults([delivery], [end.value], stopped=False)
            raise
        return await super().wait_first(Blocked(delivery, future), *others, **bound)


class Blocked:
    """An awaitable for the rest of a coroutine that waits for a future; it is closed if that is cancelled."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], future: Any) -> None:
        self.coroutine = coroutine
        self.future = future

    def __await__(self) -> Generator[Any, Any, Any]:
        with contextlib.closing(self.coroutine):
            yield self.future
            return (yield from self.coroutine.__await__())


class ConsumerThread(aiokafka.AIOKafkaConsumerThread):
    """Faust's client thread with a shorter fetch that loses nothing, and the client's position without waiting for it.

    Defects: the fetch wait is fixed at 1.5 s, and during it the client fetches no other partition of that broker. What
    a fetch takes while the flow is suspended is dropped, and only inputs are sought back: a recovery whose seek came
    before waits for ever for records of its changelogs.

    aiokafka (0.14) does not join its group again after an error that it does not know, until its user has read that.
    Faust never does. Such is the answer to a member that another process of its id replaced in mid-rebalance.

    What stopping the client raises leaves the thread as a traceback. A fetch that waits to be repeated is one cause: it
    raises CancelledError, and then Faust also waits a minute for the thread.
    """

    consumer: aiokafka.Consumer

    @Service.task
    async def _read_group_errors(self) -> None:
        """Read the errors of the consumer group, so that it is joined again; raise the one that ended this for good."""
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

    async def on_thread_stop(self) -> None:
        """Stop the client, or close its connections if that fails."""
        try:
            await super().on_thread_stop()
        except (KafkaError, asyncio.CancelledError) as error:
            log.warning("the consumer's client ended with an error", error=repr(error))
            await self._ensure_consumer()._client.close()

    def next_offset(self, tp: TP) -> int | None:
        """Return the offset that the client takes next from a partition, None if that is not known or not assigned."""
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
        """Return the records that have come; none, and their partitions sought back, if the flow is suspended."""
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


class Consumer(DirectDelivery, aiokafka.Consumer):
    """Faust's consumer, but a seek holds, and an input whose committed offset is not in its log is sought from there.

    Defects: Faust delivers after a seek the rest of what it had taken before, and then takes what it reads anew for
    repetitions: a changelog that is read again, as in a rebalance during recovery, has no records, and recovery never
    ends; inputs are passed over. Without a committed offset it leaves its position as it is, so records that were read
    and then dropped in a rebalance are lost. An offset beyond the end, of a topic that was made anew since, makes it
    take every record for a repetition.
    """

    _thread: ConsumerThread

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:  # noqa: ASYNC109 - as Faust has it
        """Yield the records that the client has taken, without those that a seek since makes it take again."""
        async for tp, message in super().getmany(timeout):
            taken = self._thread.next_offset(tp)
            if taken is not None and message.offset < taken:
                yield tp, message

    async def perform_seek(self) -> None:
        """Seek each input to the offset after the last one acknowledged, or to its beginning if its log has none."""
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

    Defect: without transactions, a record sent again after a lost reply may be there twice, the second one late.
    """

    def _settings_extra(self) -> Mapping[str, Any]:
        return {"acks": "all", "enable_idempotence": True}


class Transport(aiokafka.Transport):
    """Faust's transport with this consumer and this producer."""

    Consumer = Consumer
    Producer = Producer
