"""A person's part in a rollout of the policy: they take it over, act, and give it back.

=============  ==================================================================================================
consumes       as :class:`~console.views.play.player.PersonClient`; earlier steps (store)
produces       ``feedback`` (the take-over), ``actions``
waits for      the rollout's next step; then as a demonstration
unblocked by   the environment worker that plays it
=============  ==================================================================================================
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Self

from console.runs.feedback import Subject, make_feedback
from console.views.play.person_episode import PersonEpisode
from console.views.play.player import LEASE_S, PersonClient
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from topics import feedback, observations, trajectories
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder

READ_S = 0.5
"""Interval between looks into the store for steps that were published before this process read the topic."""


class TakeOverClient(PersonClient):
    """Plays on in the rollout whose first observations are ``shown``, in the name of ``author``."""

    def __init__(self, config: Config, shown: Sequence[Observation], author: str, lease_s: float = LEASE_S) -> None:
        super().__init__(config, task_of(shown[0].order), lease_s)
        self.author = author
        self.episode: PersonEpisode | None = PersonEpisode(order=shown[0].order, shown=tuple(shown))

    async def __aenter__(self) -> Self:
        """Connect, and read what was published meanwhile; raise ServiceUnavailable."""
        await super().__aenter__()
        await self.catch_up()
        return self

    async def begin(self) -> None:
        """Ask for the rollout, unless somebody plays it, or it has ended."""
        episode = self.episode
        if episode is None or episode.stage != "policy" or episode.is_held or episode.is_asking:
            return
        given = make_feedback(
            Subject(episode.order.task_id, episode.trajectory_id),
            self.author,
            now_ms(),
            kind="take-over",
            step=len(episode.shown) - 1,
            lease={"person": self.name, "lease_ms": round(self.lease_s * 1000)},
        )
        await self._become(episode.ask(given.feedback_id))
        await self.publisher.publish(feedback.TOPIC, given, record_id=given.feedback_id)

    async def give_back(self, reason: str) -> None:
        """Leave the present step, and those after it, to the policy."""
        episode = self.episode
        if episode is not None and episode.stage == "turn":
            await self._become(episode.give_back())
            await self._send(episode, gives_back=True)

    async def catch_up(self) -> None:
        """Apply the steps that the recorder has written and this process has not read."""
        before = episode = self.episode
        if episode is None:
            return
        for one in await self._store.steps(episode.trajectory_id):
            episode = episode.observe(one)
        # Further steps may have been read meanwhile: those stay.
        if self.episode is before and episode != before:
            self._shown_s = time.perf_counter()
            await self._become(episode)

    async def look_back(self) -> None:
        """Catch up while the policy acts, until cancelled: a step may have come between the store and the topic."""
        while True:
            await asyncio.sleep(READ_S)
            if self.episode is not None and self.episode.stage == "policy":
                await self.catch_up()

    async def _apply(self, event: observations.Observation | trajectories.Trajectory) -> None:
        await super()._apply(event)
        if self.episode is not None and self.episode.stage == "turn" and self.present:
            await self._send(self.episode, alive=True)


def task_of(order: RolloutOrder) -> Task:
    """Return the task of an order, as far as its id says it."""
    place, _, seed = order.task_id.rpartition("#")
    environment, _, page = place.partition("/")
    return Task(environment=environment, page=page, seed=int(seed), max_steps=order.max_steps, split="train")
