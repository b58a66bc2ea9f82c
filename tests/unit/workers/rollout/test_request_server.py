"""The desk when an answer fails for good. That it answers is tested on a real broker."""

import asyncio

import pytest

from dart_streams.errors import ServiceUnavailable
from workers.rollout.request_server import RequestServer


class OneRecord:
    """An intake that gives one record, and then waits."""

    def __init__(self) -> None:
        self.given = False

    async def take(self, room: int) -> list[str]:
        if self.given:
            await asyncio.Event().wait()
        self.given = True
        return ["record"]


class NoBroker(RequestServer):
    async def handle(self, record, received):
        raise ServiceUnavailable("no broker")


async def test_what_ends_an_answer_for_good_ends_the_desk_as_it_is():
    desk = NoBroker("w", engine=None, intake=OneRecord(), publisher=None, reply_partitions=1, max_in_flight=2)
    async with asyncio.timeout(5):
        with pytest.raises(ServiceUnavailable, match="no broker"):
            await desk.serve(asyncio.Event(), drain_s=1.0)
