"""A trajectory's own record: its observations are told in order, and one that was begun is told to its end."""

import asyncio

from dart_streams.bus.clients import Publisher
from topics import observations
from topics.observations import Observation


class Journal:
    """Publishes the observations of one trajectory."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self._last: asyncio.Task[None] | None = None

    async def tell(self, observation: Observation) -> None:
        """Publish ``observation`` after those before it.

        A cancelled caller leaves no hole: the observation is published all the same, before any later one.
        """
        self._last = asyncio.create_task(self._publish(observation, after=self._last))
        await asyncio.shield(self._last)

    async def _publish(self, observation: Observation, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await after
        await self.publisher.publish(observations.TOPIC, observation)
