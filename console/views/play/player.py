"""A person's part in a run: their orders, actions and signs of life as records, and the screens that come back.

=============  ==================================================================================================
consumes       ``observations`` and ``trajectories``, new ones, without a group; screenshots (store)
produces       ``rollout-orders``, ``actions``
waits for      the person; a free slot for their order; the screen after each action
unblocked by   an environment worker; the recorder
=============  ==================================================================================================
"""

import asyncio
import contextlib
import os
import time
from typing import Self

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer

from console.views.page.source import NotFound
from console.views.play.gestures import AnyGesture, UnknownGesture, action_of
from console.views.play.person_episode import PersonEpisode
from dart_streams import actions
from dart_streams.bus.clients import POLL_TIMEOUT_MS, Publisher, event_of, open_topics
from dart_streams.bus.codec import Undecodable
from dart_streams.clock import now_ms, since_ms
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.episodes.demonstrations import demonstration_order, written_action
from dart_streams.episodes.episode import new_trajectory_id
from dart_streams.screens import smart_resize
from dart_streams.store import AsyncStore, MissingBlob, open_store
from topics import actions as action_topic
from topics import observations, rollout_orders, trajectories
from topics.actions import ActionResponse
from topics.rollout_orders import PersonLease, RolloutOrder
from workers.env.environment import rescale

SIGN_S = 2.0
"""Interval between signs of life."""
LEASE_S = 15.0
"""Time without a sign of life after which an episode ends."""

FOLLOWED = (observations.TOPIC, trajectories.TOPIC)
FETCH_MS = 50
"""A person waits for each screen."""

log = structlog.get_logger()


class PersonClient:
    """Plays orders of one task, one at a time. ``present`` while somebody has the page open."""

    def __init__(self, config: Config, task: Task, lease_s: float = LEASE_S) -> None:
        self.config = config
        self.task = task
        self.lease_s = lease_s
        self.name = f"person-{os.urandom(4).hex()}"
        self.publisher = Publisher(config.bus, self.name)
        self.episode: PersonEpisode | None = None
        self.present = False
        self.changed = asyncio.Condition()
        self._shown_s = 0.0
        self._resources = contextlib.AsyncExitStack()
        self._records: AIOKafkaConsumer
        self._store: AsyncStore

    async def __aenter__(self) -> Self:
        """Connect; raise ServiceUnavailable if the broker, a topic or the database does not answer."""
        async with contextlib.AsyncExitStack() as resources:
            await resources.enter_async_context(self.publisher)
            followed = open_topics(self.config.bus, self.publisher, FOLLOWED, FETCH_MS, at_end=True)
            self._records = await resources.enter_async_context(followed)
            self._store = await open_store(self.config, resources)
            self._resources = resources.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.aclose()

    async def begin(self) -> None:
        """Order an episode, unless one is under way."""
        if self.episode is not None and not self.episode.ended:
            return
        order = order_of(self.config, self.task, self.name, self.lease_s)
        await self._become(PersonEpisode(order=order))
        await self.publisher.publish(rollout_orders.TOPIC, order)

    async def act(self, request_id: str, gesture: AnyGesture) -> None:
        """Send the action of a gesture on the screen of ``request_id``; on an older screen it is ignored.

        Raises UnknownGesture if no action of the policy's language stands for it.
        """
        episode = self.episode
        if episode is None or episode.stage != "turn" or episode.request_id != request_id:
            return
        text = self.text_of(gesture, episode)
        await self._become(episode.send())
        await self._send(episode, text=text, generate_ms=since_ms(self._shown_s))

    def text_of(self, gesture: AnyGesture, episode: PersonEpisode) -> str:
        """Return the canonical action of a gesture; raise UnknownGesture if the policy could not answer so."""
        screen, policy = episode.screen, self.config.policy
        if screen is None:
            raise UnknownGesture("there is no screen yet")
        size = screen.width, screen.height
        action = action_of(gesture, size)
        image = smart_resize(*size, policy.min_pixels, policy.max_pixels)
        try:
            written_action(actions.format(rescale(action, size, image)), episode.shown, policy)
        except ValueError as error:
            raise UnknownGesture(f"the policy has no such action: {error}") from None
        return actions.format(action)

    async def give_back(self, reason: str) -> None:
        """End the episode that waits for the person, as a fault with this reason."""
        if self.episode is not None and self.episode.stage == "turn":
            await self._send(self.episode, error=reason)

    async def screenshot(self, sha256: str) -> bytes:
        """Return a screenshot of this episode; raise NotFound for any other."""
        shown = self.episode.shown if self.episode is not None else ()
        refs = {one.screenshot.sha256: one.screenshot for one in shown if one.screenshot is not None}
        if sha256 not in refs:
            raise NotFound("this episode has no such screenshot")
        try:
            return await self._store.get_blob(refs[sha256])
        except MissingBlob as error:
            raise NotFound(str(error)) from None

    async def read(self) -> None:
        """Follow the episode until cancelled."""
        topics = {self.config.bus.prefix + topic.name: topic for topic in FOLLOWED}
        while True:
            for batch in (await self._records.getmany(timeout_ms=POLL_TIMEOUT_MS)).values():
                for record in batch:
                    # A run has thousands of others a second, which are not decoded.
                    if self.episode is None or self.episode.order.order_id.encode() not in (record.value or b""):
                        continue
                    try:
                        await self._apply(event_of(topics[record.topic], record))
                    except Undecodable as error:
                        log.warning("record not read", topic=record.topic, offset=record.offset, reason=str(error))

    async def show_life(self) -> None:
        """Send signs of life while the person is present, until cancelled."""
        while True:
            if self.present and self.episode is not None and self.episode.stage == "turn":
                await self._send(self.episode, alive=True)
            await asyncio.sleep(min(SIGN_S, self.lease_s / 4))

    async def _apply(self, event: observations.Observation | trajectories.Trajectory) -> None:
        before = self.episode
        if before is None:
            return
        after = before.announce(event) if isinstance(event, trajectories.Trajectory) else before.observe(event)
        if after == before:
            return
        if len(after.shown) != len(before.shown) or after.trajectory_id != before.trajectory_id:
            self._shown_s = time.perf_counter()
        await self._become(after)
        if after.ended and not before.ended:
            log.info("episode ended", task=self.task.task_id, trajectory=after.trajectory_id, **end_of(after))

    async def _become(self, episode: PersonEpisode) -> None:
        async with self.changed:
            self.episode = episode
            self.changed.notify_all()

    async def _send(
        self,
        episode: PersonEpisode,
        *,
        text: str = "",
        generate_ms: float = 0.0,
        error: str | None = None,
        alive: bool = False,
        gives_back: bool = False,
    ) -> None:
        response = ActionResponse(
            request_id=episode.request_id,
            trajectory_id=episode.trajectory_id,
            step=len(episode.shown) - 1,
            text=text,
            tokens=[],
            logprobs=[],
            entropies=[],
            versions=[],
            prompt_tokens=0,
            prompt_sha="",
            worker_id=self.name,
            queue_ms=0.0,
            generate_ms=generate_ms,
            error=error,
            **({"alive": True} if alive else {}),
            **({"gives_back": True} if gives_back else {}),
        )
        # The worker reads the partition that it chose at its start, when there may have been fewer. Others skip it.
        places = range(await self.publisher.partitions_of(action_topic.TOPIC))
        publish = self.publisher.publish
        await asyncio.gather(*(publish(action_topic.TOPIC, response, partition=place) for place in places))


def order_of(config: Config, task: Task, person: str, lease_s: float) -> RolloutOrder:
    """Return a new order of a demonstration by a person."""
    lease = PersonLease(person=person, lease_ms=round(lease_s * 1000))
    identity = f"demonstration-{new_trajectory_id(now_ms(), os.urandom(10))}"
    order = demonstration_order(identity, task.task_id, task.max_steps, config)
    return msgspec.structs.replace(order, lease=lease)


def end_of(episode: PersonEpisode) -> dict[str, object]:
    """Return outcome, reward and reason of an ended episode, for its line of log."""
    end = episode.shown[-1].end
    assert end is not None
    return {"outcome": end.kind, "reward": end.reward, "reason": end.reason}
