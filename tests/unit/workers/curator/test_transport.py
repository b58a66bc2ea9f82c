"""Faust's transport with its overrides, without a broker."""

from unittest.mock import AsyncMock

import pytest
from faust.transport.drivers import aiokafka
from faust.types import TP
from mode.utils.queues import ThrowableQueue

from dart_streams.config import parse
from tests.task_files import write_tasks
from workers.curator.main import DataManager
from workers.curator.transport import Consumer, Flow


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
    tables = {"run": {"state_dir": str(tmp_path)}, "tasks": write_tasks(tmp_path, "grid")}
    app = DataManager(parse(tables), "curator-0")
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
