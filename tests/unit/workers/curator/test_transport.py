"""The consumer hands a record on as Faust's does: at once where nothing holds it up, else until it stops.

The flow empties the streams' buffers when it begins again, and only then.
"""

import asyncio
from unittest.mock import AsyncMock

import pytest
from faust.transport.drivers import aiokafka
from faust.types import TP
from mode.utils.queues import ThrowableQueue

from dart_streams.config import parse
from workers.curator.main import create_app
from workers.curator.transport import Consumer, DirectDelivery, Flow


class Reader(DirectDelivery):
    """The consumer's way to wait, without a broker."""


async def delivered(to: list[str], first: asyncio.Future | None = None) -> str:
    if first is not None:
        to.append(await first)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    to.append("delivered")
    return "done"


async def test_an_unblocked_record_is_delivered_without_a_task():
    got: list[str] = []
    before = asyncio.all_tasks()
    waiting = Reader().wait_first(delivered(got), asyncio.Event().wait())
    with pytest.raises(StopIteration) as ended:
        waiting.send(None)
    assert (got, ended.value.value.results) == (["delivered"], ["done"])
    assert asyncio.all_tasks() == before


async def test_a_record_that_is_held_up_is_delivered_when_there_is_room():
    got: list[str] = []
    room = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(Reader().wait_first(delivered(got, first=room), asyncio.Event().wait()))
    await asyncio.sleep(0)
    assert got == []
    room.set_result("room")
    result = await waiting
    assert got == ["room", "delivered"]
    assert result.results == ["done"]


async def test_a_blocked_record_is_not_delivered_after_a_suspension():
    got: list[str] = []
    room, suspended = asyncio.get_running_loop().create_future(), asyncio.Event()
    waiting = asyncio.create_task(Reader().wait_first(delivered(got, first=room), suspended.wait()))
    await asyncio.sleep(0)
    suspended.set()
    await waiting
    assert room.cancelled()
    assert got == []


async def test_what_a_delivery_raises_is_raised_whether_it_was_held_up_or_not():
    async def broken(first: asyncio.Future | None) -> None:
        if first is not None:
            await first
        raise LookupError("no such channel")

    with pytest.raises(LookupError):
        await Reader().wait_first(broken(None), asyncio.Event().wait())
    room = asyncio.get_running_loop().create_future()
    room.set_result(None)
    with pytest.raises(LookupError):
        await Reader().wait_first(broken(room), asyncio.Event().wait())


@pytest.mark.parametrize(("suspended", "left"), [(False, 1), (True, 0)])
async def test_a_flow_that_is_resumed_keeps_what_came_unless_it_was_suspended(suspended, left):
    flow = Flow()
    buffer = ThrowableQueue(5, flow_control=flow, clear_on_resume=True)
    flow.resume()
    await buffer.put("record")
    if suspended:
        flow.suspend()
    flow.resume()
    assert buffer.qsize() == left
    assert flow.is_active()


async def test_a_changelog_record_sent_again_after_a_lost_reply_is_written_once(tmp_path):
    app = create_app(parse({"run": {"state_dir": str(tmp_path)}}), "curator-0")
    kafka = app.producer._new_producer()
    assert kafka._txn_manager is not None
    assert kafka._txn_manager.transactional_id is None


async def test_an_offset_outside_the_log_is_sought_from_the_beginning(monkeypatch):
    """It has none, retention has passed it, or it is of a topic that was made anew since and has fewer records."""
    begins = {"none": 3, "passed": 30, "anew": 0, "first": 5, "within": 0, "last": 0}
    ends = {"none": 9, "passed": 40, "anew": 2, "first": 9, "within": 9, "last": 9}
    committed = {"none": None, "passed": 20, "anew": 7, "first": 5, "within": 4, "last": 9}
    places = {name: TP(name, 0) for name in committed}
    made = Consumer.__new__(Consumer)
    made.__dict__ |= {
        "assignment": lambda: {*places.values(), TP("changelog", 0)},
        "_is_changelog_tp": lambda place: place.topic == "changelog",
        "_committed_offset": {places[name]: offset for name, offset in committed.items()},
        "earliest_offsets": AsyncMock(return_value={places[name]: offset for name, offset in begins.items()}),
        "highwaters": AsyncMock(return_value={places[name]: offset for name, offset in ends.items()}),
        "seek_wait": AsyncMock(),
    }
    monkeypatch.setattr(aiokafka.Consumer, "perform_seek", AsyncMock())
    await made.perform_seek()
    assert made.seek_wait.await_args.args == ({places["none"]: 3, places["passed"]: 30, places["anew"]: 0},)
    assert made._committed_offset[places["anew"]] is None, "else each of its records is taken for a repeat"
    assert made._committed_offset[places["within"]] == 4
