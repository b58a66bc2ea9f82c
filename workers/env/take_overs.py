"""Take-overs of running episodes: which person plays which episode of this process, as the topic ``feedback`` says.

It is read from its end, without a group, by workers of runs that take feedback. The topic has one order for a
trajectory, so all readers agree on the first take-over.

A person who gives an episode back may ask for it again at once. What they give back comes on another topic, and may be
read later.
"""

import contextlib

from aiokafka import AIOKafkaConsumer

from dart_streams.bus.clients import POLL_TIMEOUT_MS, event_of
from dart_streams.bus.codec import Undecodable
from topics import feedback
from topics.feedback import Feedback
from topics.rollout_orders import RolloutOrder


def may_be_taken(order: RolloutOrder) -> bool:
    """Return whether a person may act in an order's rollout: the policy alone plays it, and training may see it."""
    return order.purpose == "train" and order.lease is None and order.guide is None and not order.plan


class TakeOvers:
    """The take-over that holds each episode of this process, by trajectory; episodes without one are None."""

    def __init__(self) -> None:
        self._held: dict[str, Feedback | None] = {}
        self._asked_again: dict[str, Feedback] = {}

    def begin(self, trajectory_id: str, order: RolloutOrder) -> None:
        """Let an episode be taken over from now on, if its order may be."""
        if may_be_taken(order):
            self._held[trajectory_id] = None

    def end(self, trajectory_id: str) -> None:
        """Forget an episode."""
        self._held.pop(trajectory_id, None)
        self._asked_again.pop(trajectory_id, None)

    def add(self, given: Feedback) -> None:
        """Hold an episode for a person; ignored are episodes of others, and those that another person holds.

        A person who holds it and asks again, has it again after they give it back.
        """
        if given.kind != "take-over" or given.lease is None or given.trajectory_id not in self._held:
            return
        held = self._held[given.trajectory_id]
        if held is None:
            self._held[given.trajectory_id] = given
        elif held.lease is not None and held.lease.person == given.lease.person and held != given:
            self._asked_again[given.trajectory_id] = given

    def holder(self, trajectory_id: str) -> Feedback | None:
        """Return the take-over that holds an episode; None if the policy plays it."""
        return self._held.get(trajectory_id)

    def release(self, trajectory_id: str) -> None:
        """Give an episode back to the policy, until its person's next turn if they have asked again."""
        if trajectory_id in self._held:
            self._held[trajectory_id] = self._asked_again.pop(trajectory_id, None)

    async def read(self, records: AIOKafkaConsumer) -> None:
        """Add take-overs until cancelled. The curator sends unreadable records to the dead letters."""
        while True:
            for batch in (await records.getmany(timeout_ms=POLL_TIMEOUT_MS)).values():
                for record in batch:
                    with contextlib.suppress(Undecodable):
                        self.add(event_of(feedback.TOPIC, record))
