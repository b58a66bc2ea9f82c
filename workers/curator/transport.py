"""Faust's Kafka transport, with a consumer that hands records on without a task for each.

Faust makes four tasks a record: to deliver it, and to notice meanwhile that the flow is suspended, or that the consumer
stops. Nearly always a record is taken at once, and there is no meanwhile.
"""

import contextlib
from collections.abc import Coroutine, Generator
from typing import Any

from faust.transport.drivers import aiokafka
from mode import Service
from mode.services import WaitResults


class HandsOn(Service):
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


class Consumer(HandsOn, aiokafka.Consumer):
    """Faust's consumer with that."""


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
