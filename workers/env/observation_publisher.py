"""A trajectory's own record: its observations are told in order, and one that was begun is told to its end."""

import asyncio
from typing import Any

from dart_streams.bus.clients import Publisher
from topics import observations
from topics.observations import Observation


class ObservationPublisher:
    """Publishes the observations of one trajectory."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self._last: asyncio.Task[None] | None = None

    def tell(self, observation: Observation, screenshot: asyncio.Task[Any] | None) -> asyncio.Future[None]:
        """Publish ``observation`` after those before it, and once its ``screenshot`` is durable.

        It is begun at once, and cancelling the future returned does not stop it: a caller that is cancelled leaves
        no hole in its trajectory.
        """
        self._last = asyncio.create_task(self._publish(observation, self._last, screenshot))
        return asyncio.shield(self._last)

    async def _publish(self, observation: Observation, *first: asyncio.Task[Any] | None) -> None:
        for task in first:
            if task is not None:
                await task
        await self.publisher.publish(observations.TOPIC, observation)
