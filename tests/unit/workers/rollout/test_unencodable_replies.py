"""A reply that nobody could read is not lost: the env worker is answered with an error that says so."""

import math
from typing import Any, cast

import msgspec
import pytest

from dart_streams.bus.codec import decode, encode
from tests import events
from topics import Topic, actions
from topics.actions import ActionResponse
from topics.values import VersionSpan
from workers.rollout.request_server import RequestServer

REPLY = events.action_response(
    "Action: wait()", tokens=[1], logprobs=[-0.5], entropies=[0.1], versions=[VersionSpan(version=1, start=0, end=1)]
)


class Publishes:
    """Encodes what is published, as a publisher does."""

    def __init__(self) -> None:
        self.sent: list[ActionResponse] = []

    async def publish(self, topic: Topic, event: Any, *, partition: int) -> None:
        record = encode(topic, event)
        self.sent.append(decode(topic, record.value, record.headers))


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": [math.nan]},
        {"entropies": [math.inf]},
        {"text": "\ud83d"},
        {"tokens": [-1]},
        {"logprobs": [None]},
        {"text": None},
        {"versions": [VersionSpan(version=-1, start=0, end=1)]},
        {"text": "\u4e16" * 1_500_000},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_an_answer_that_no_record_can_carry_becomes_an_error_reply(fields: dict[str, Any]):
    publisher = Publishes()
    server = RequestServer("rollout-0", cast(Any, None), cast(Any, None), cast(Any, publisher), 4, 8, {})
    await server._publish(msgspec.structs.replace(REPLY, **fields), 2)
    [reply] = publisher.sent
    assert (reply.request_id, reply.text, reply.tokens, reply.versions) == ("t/0/0", "", [], [])
    assert reply.error is not None
    assert "an event of actions cannot be published" in reply.error


async def test_any_other_reply_is_published_as_it_is():
    publisher = Publishes()
    server = RequestServer("rollout-0", cast(Any, None), cast(Any, None), cast(Any, publisher), 4, 8, {})
    await server._publish(REPLY, 2)
    assert publisher.sent == [REPLY]
    assert actions.TOPIC.event is ActionResponse
