"""A summary that nobody could read ends its order as a fault, and its last observation is a dead letter."""

import math
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from dart_streams.bus.codec import decode, encode
from dart_streams.episodes.trajectory_summary import summarize
from tests.unit.episodes.test_trajectory_summary import SUCCESS, answer, observation
from topics import Topic, observations, trajectories
from topics.trajectories import Trajectory
from workers.recorder.main import ObservationWriter
from workers.runtime.ordered_consumer import Delivery


class Broker:
    """Takes what can be read again."""

    def __init__(self) -> None:
        self.published: list[Trajectory] = []
        self.letters: list[str] = []
        self.written: list[Trajectory] = []

    async def publish(self, topic: Topic, event: Any, **_: Any) -> None:
        record = encode(topic, event)
        self.published.append(decode(topic, record.value, record.headers))

    async def send(self, name: str, *_: Any) -> None:
        self.letters.append(name)

    async def write_trajectory(self, trajectory: Trajectory) -> None:
        self.written.append(trajectory)


async def test_a_summary_that_no_record_can_carry_is_announced_as_a_fault():
    last = observation(1, answer(), SUCCESS)
    record = encode(observations.TOPIC, last)
    item = Delivery(last, cast(Any, SimpleNamespace(**record._asdict(), topic="observations", partition=0, offset=7)))
    summary = msgspec.structs.replace(summarize([observation(0), last]), step_entropies=[math.nan])
    broker = Broker()
    await ObservationWriter(cast(Any, broker), cast(Any, broker))._announce(summary, item)
    [announced] = broker.published
    assert (announced.outcome, announced.reward, announced.order_id) == ("env_error", None, "g/0")
    assert (broker.letters, broker.written) == (["observations.dlq"], [announced])
    assert trajectories.TOPIC.event is Trajectory
