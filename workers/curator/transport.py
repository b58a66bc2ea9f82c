"""Faust's Kafka transport, with a consumer that hands records on without a task for each, and a flow that loses none.

Faust makes four tasks a record: to deliver it, and to notice meanwhile that the flow is suspended, or that the consumer
stops. Nearly always a record is taken at once, and there is no meanwhile.

Once the tables are recovered, Faust seeks the inputs to their committed offsets, partition after partition, and then
resumes the flow, which empties the streams' buffers. But it had resumed it before, to read the changelogs, and records
may have come since the seek: for this process they are lost, and it waits for what would have come of them. The quicker
records are handed on, the more are lost. A flow that was not suspended has nothing to empty.
"""

import contextlib
from collections.abc import Coroutine, Generator
from typing import Any

from faust.transport.consumer import ensure_TP
from faust.transport.drivers import aiokafka
from mode import Service
from mode.services import WaitResults
from mode.utils.queues import FlowControlEvent

FETCH_MS = 100
"""A fetch waits so long for records. While it waits, the client asks for none, also of partitions that have some."""


class Flow(FlowControlEvent):
    """The flow of records into the streams' buffers, which are emptied only when it begins again."""

    def resume(self) -> None:
        """Let records flow; where they flow already, leave them alone."""
        if not self.is_active():
            super().resume()


class DirectDelivery(Service):
    """A service that hands records on at once, if they are taken at once."""

    async def wait_first(self, *coros: Any, **bound: Any) -> Any:
        """Wait for the first of ``coros``: without any task if that does not pause at all, else as Faust does."""
        delivery, *others = coros
        if not isinstance(delivery, Coroutine):
            return await super().wait_first(*coros, **bound)
        paused = False
        try:
            paused_for = delivery.send(None)
            paused = True
        except StopIteration as end:
            return WaitResults([delivery], [end.value], stopped=False)
        finally:
            if not paused:
                for other in others:
                    other.close()
        return await super().wait_first(Paused(delivery, paused_for), *others, **bound)


class ConsumerThread(aiokafka.AIOKafkaConsumerThread):
    """Faust's thread for the client, which does not wait for long."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = min(FETCH_MS, consumer._fetch_max_wait_ms)
        return consumer


class Consumer(DirectDelivery, aiokafka.Consumer):
    """Faust's consumer with these, which seeks the beginning of an input that nothing was committed of yet.

    Faust leaves such a one where it stands: what was read of it, but dropped because of a rebalance, would be lost.
    """

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        """Seek each input to what comes after the last record acknowledged."""
        await super().perform_seek()
        inputs = {tp for tp in self.assignment() if not self._is_changelog_tp(tp)}
        new = [tp for tp in inputs if self._committed_offset[tp] is None]
        if new:
            await self.seek_wait({ensure_TP(tp): offset for tp, offset in (await self.earliest_offsets(*new)).items()})


class Transport(aiokafka.Transport):
    """Faust's transport with this consumer."""

    Consumer = Consumer


class Paused:
    """What is left of a coroutine that has paused, for a future or a turn of the loop; whoever awaits it goes on.

    If that is cancelled before the pause is over, the coroutine is closed.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], paused_for: Any) -> None:
        self.coroutine = coroutine
        self.paused_for = paused_for

    def __await__(self) -> Generator[Any, Any, Any]:
        with contextlib.closing(self.coroutine):
            yield self.paused_for
            return (yield from self.coroutine.__await__())
