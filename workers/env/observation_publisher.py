"""Publishes the observations of one trajectory in order."""

import asyncio
from typing import Any

from dart_streams.bus.clients import Publisher
from topics import observations
from topics.observations import Observation


class ObservationPublisher:
    """One trajectory's observations; each is published after those before it."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self._last: asyncio.Task[None] | None = None

    def publish(self, observation: Observation, screenshot: asyncio.Task[Any] | None) -> asyncio.Future[None]:
        """Publish ``observation`` once those before it are, and its ``screenshot`` is durable.

        Cancelling the returned future does not cancel the publication: an episode that is cancelled leaves no gap in
        its trajectory.
        """
        self._last = asyncio.create_task(self._publish(observation, self._last, screenshot))
        return asyncio.shield(self._last)

    async def _publish(self, observation: Observation, *first: asyncio.Task[Any] | None) -> None:
        for task in first:
            if task is not None:
                await task
        await self.publisher.publish(observations.TOPIC, observation)
