"""The order of effects of a batch, and what a restart makes of it, with a table and a broker of a few lines."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import faust
import pytest

from benchmarks.curation_world import task_set
from dart_streams.bus.clients import SendCoalescer
from dart_streams.bus.codec import Unencodable
from dart_streams.config import parse
from dart_streams.curation import journal
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.changelog import entry_key
from tests.task_files import write_tasks
from tests.unit.workers.curator.broker import Broker, Stream, process
from topics import task_difficulty
from workers.curator import agents, durable_agent
from workers.curator.changelogs import MAX_RECORD_BYTES, application_id, changelog_topics
from workers.curator.durable_agent import DurableAgent
from workers.curator.journal_writer import OwnershipLost
from workers.curator.journaled_state import input_of
from workers.curator.main import DataManager, member_id
from workers.runtime.lifecycle import UnexpectedExit


def difficulties(*offsets: int) -> list[str]:
    return [f"difficulty/trajectories/0/{offset}" for offset in offsets]


async def test_a_batch_is_journaled_before_it_is_published_and_acknowledged_last(broker):
    agent = await broker.owning()
    await process(agent, broker.event(0), broker.event(1))
    assert broker.effects == ["journaled", "published", "published", "acknowledged", "acknowledged"]
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0, 1)


async def test_each_agent_that_counts_fates_has_a_counter_of_its_own(broker):
    reducers = bind_agents(parse({"feedback": {"enabled": True}}), task_set(3))
    durable = [
        DurableAgent(reducer, broker.changelog, SendCoalescer(0.0), 60.0, "", one_state=False) for reducer in reducers
    ]
    assert [agent.reducer.name for agent in durable if agent.reducer.name in agent.fates] == ["groups", "feedback"]
    assert all(hasattr(agent.reducer.state(), "counts") == (agent.reducer.name in agent.fates) for agent in durable)


async def test_an_oversized_decision_is_a_dead_letter_of_its_input(broker, monkeypatch):
    agent, encode = await broker.owning(), durable_agent.encode

    def encoded(topic, event, headers, record_id):
        if (topic, record_id) == (task_difficulty.TOPIC, "difficulty/trajectories/0/0"):
            raise Unencodable("too large")
        return encode(topic, event, headers, record_id)

    monkeypatch.setattr(durable_agent, "encode", encoded)
    await process(agent, broker.event(0), broker.event(1))
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(1)
    assert broker.effects.count("sent to trajectories.dlq") == 1
    assert broker.effects.count("acknowledged") == 2


async def test_a_record_read_again_is_acknowledged_and_nothing_else(broker):
    agent = await broker.owning()
    await process(agent, broker.event(0))
    broker.effects.clear()
    await process(agent, broker.event(0))
    assert broker.effects == ["acknowledged"]


async def test_skipped_inputs_are_read_from_the_topic_in_order(broker):
    broker.has(2, 3)
    agent = await broker.owning()
    await process(agent, broker.event(0), broker.event(1), broker.event(4))
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0, 1, 2, 3, 4)
    broker.effects.clear()
    await process(agent, broker.event(2), broker.event(3), broker.event(5))
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0, 1, 2, 3, 4, 5)
    assert broker.effects.count("acknowledged") == 3
    assert broker.inputs_read == 1


async def test_inputs_skipped_after_a_restart_are_read_from_the_topic(broker):
    agent = await broker.owning()
    await process(agent, broker.event(0))
    broker.has(1, 2)
    restarted = broker.agent()
    await process(restarted, broker.event(3))
    assert broker.published[task_difficulty.TOPIC.name][-3:] == difficulties(1, 2, 3)


async def test_many_inputs_passed_over_take_as_many_journal_entries_as_they_need(broker, monkeypatch):
    monkeypatch.setattr(durable_agent, "MAX_BATCH", 4)
    broker.has(*range(10))
    agent = await broker.owning()
    await process(agent, broker.event(10))
    assert broker.effects.count("journaled") == 4
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(*range(11))


async def test_gaps_and_undecodable_records_are_no_skipped_inputs(broker):
    agent = await broker.owning()
    await process(agent, broker.event(0), broker.event(7))
    assert broker.inputs_read == 1
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0, 7)
    broker.has(8, 9)
    await process(agent, broker.event(8, b"{"), broker.event(9, b"{"), broker.event(10))
    assert broker.inputs_read == 1
    assert broker.effects.count("sent to trajectories.dlq") == 2
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0, 7, 10)


async def test_journaled_decisions_are_published_after_a_restart(broker):
    agent = await broker.owning()
    state = await agent.owned_state(0)
    broker.up = False
    with pytest.raises(ConnectionError):
        await process(agent, broker.event(0))
    assert broker.effects == ["journaled"]
    with pytest.raises(ConnectionError):
        await broker.agent().owned_state(0)
    broker.up = True
    restarted = await broker.agent().owned_state(0)
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0)
    assert restarted.state == state.state


async def test_an_undecodable_record_is_dead_lettered(broker, monkeypatch):
    monkeypatch.setattr(durable_agent.dead_letters, "send", send := AsyncMock())
    agent = broker.agent()
    await process(agent, broker.event(0, b"not json"), broker.event(1))
    _, topic, original, reason = send.await_args.args
    assert (topic.name, original.offset, original.value) == ("trajectories", 0, b"not json")
    assert reason
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(1)


async def test_a_drained_agent_begins_no_other_batch_and_leaves_a_snapshot(broker):
    agent, stream = await broker.owning(), Stream(broker.event(0))
    running = asyncio.create_task(agents.difficulty(agent, stream))
    while "acknowledged" not in broker.effects:  # noqa: ASYNC110 - a turn later it is
        await asyncio.sleep(0)
    await agent.drain()
    stream.put(broker.event(1))
    await asyncio.sleep(0.2)
    running.cancel()
    assert broker.effects == ["journaled", "published", "published", "acknowledged", "snapshot"]
    assert (await broker.agent().owned_state(0)).unpublished == []


async def test_a_large_snapshot_is_written_in_parts(broker, monkeypatch):
    monkeypatch.setattr(journal, "PART_BYTES", 100)
    agent = await broker.owning()
    for offset in range(3):
        await process(agent, broker.event(offset))
        await (await agent.owned_state(0)).snapshot()
    kept = broker.changelog.views[0].stored()
    assert max(len(value) for key, value in kept.items() if b"/entry/" not in key) <= 100
    assert len([key for key in kept if b"/part/" in key]) > 4
    restored = await broker.agent().owned_state(0)
    assert (restored.state, restored.unpublished) == (agent.states[0].state, [])


async def test_a_failed_batch_is_in_no_snapshot(broker):
    """What was folded and not journaled must not outlive the process."""
    agent = await broker.owning()
    send, broker.send_changelog = broker.send_changelog, AsyncMock(side_effect=ConnectionError)
    with pytest.raises(ConnectionError):
        await process(agent, broker.event(0))
    broker.send_changelog = send
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await agent.drain()
    assert broker.effects == []


async def test_records_from_before_a_rebalance_are_left_to_the_new_owner(broker):
    await process(broker.agent(), broker.event(0, generation=0))
    assert broker.effects == []


async def batches_of(agent: DurableAgent, stream: Stream) -> list[int]:
    """Return how many events each batch of a stream has."""
    stream.close()
    return [len(batch.events) async for batch in agent.read(stream)]


@pytest.mark.parametrize("part", ["key", "value", "headers"])
async def test_a_batch_of_large_records_fits_into_one_journal_entry(broker, part):
    large = b"x" * 1_000_000
    records = [broker.event(offset) for offset in range(20)]
    for record in records:
        setattr(record.message, part, [("h", large)] if part == "headers" else large)
    sizes = await batches_of(broker.agent(), Stream(*records))
    assert sum(sizes) == 20
    assert max(sizes) * len(large) < MAX_RECORD_BYTES


def test_a_header_without_a_value_is_not_journaled():
    message = SimpleNamespace(
        topic="p.trajectories", partition=0, offset=3, key=None, value=b"{}", headers=[("id", None), ("x", b"y")]
    )
    entry = journal.Entry(1, "", [input_of(message, "p.", 5)])
    assert journal.read_history({entry_key(0, 0, 0): journal.encode(entry)}, 0)[1] == [entry]
    assert entry.inputs[0].headers == [("x", b"y")]


async def test_a_batch_has_at_most_as_many_records_as_a_buffer(broker, monkeypatch):
    monkeypatch.setattr(durable_agent, "MAX_BATCH", 4)
    assert await batches_of(broker.agent(), Stream(*map(broker.event, range(10)))) == [4, 4, 2]


async def test_agents_of_one_pace_begin_together_and_a_lone_record_at_once(broker):
    pace, releases = SendCoalescer(0.05), list[float]()

    async def take(records: int) -> None:
        one = Broker()
        agent = one.agent()
        agent.pace = pace
        assert await batches_of(agent, Stream(*map(one.event, range(records)))) == [records]
        releases.append(pace._next_s)

    await take(1)
    await asyncio.gather(*(take(2) for _ in range(3)))
    lone, *others = releases
    assert min(others) - lone >= 0.05
    assert len(set(others)) == 1


@pytest.fixture
def app(tmp_path: Path) -> DataManager:
    tables = {"run": {"state_dir": str(tmp_path)}, "tasks": write_tasks(tmp_path, "grid") | {"proposals": True}}
    return DataManager(parse(tables | {"feedback": {"enabled": True}}), "curator-0")


async def test_agents_are_bound_to_tables_whose_changelogs_exist(app):
    changelogs = {spec.name: spec.partitions for spec in changelog_topics(app.config)}
    assert {table.changelog_topic_name: table.partitions for table in app.tables.values()} == changelogs
    assert app.conf.id == application_id(app.config)


async def test_the_functions_of_one_file_are_what_faust_runs(app):
    """Each is bound to the durable part of its agent, and has the reducer of its name."""
    assert list(app.agents) == [durable.reducer.name for durable in app.durable]
    for name, bound in app.agents.items():
        function, (durable,) = bound.fun.func, bound.fun.args
        assert (function.__module__, function.__name__) == ("workers.curator.agents", name)
        assert durable.reducer.apply.func.__module__ == f"dart_streams.curation.{name}"


async def returns() -> None:
    """Return at once."""


async def test_what_runs_beside_the_agents_ends_the_application_when_it_ends(app):
    app.watch("audit", returns())
    with pytest.raises(UnexpectedExit, match="exited: audit"):
        async with asyncio.timeout(60):
            await app.run_until_failure()


async def test_a_failed_drain_leaves_no_part_running_and_is_raised_at_the_end(app, monkeypatch):
    stopped = AsyncMock()
    monkeypatch.setattr(faust.App, "on_stop", stopped)
    monkeypatch.setattr(DurableAgent, "drain", AsyncMock(side_effect=OwnershipLost("another one claimed it")))
    with pytest.raises(OwnershipLost, match="another one"):
        await app.end()
    stopped.assert_awaited_once()


def test_the_static_member_id_changes_with_a_recreated_topic():
    known = {"trajectories": "a", "weights": "b"}
    same, anew = (member_id("curator-0", ids) for ids in (dict(reversed(known.items())), known | {"weights": "c"}))
    assert member_id("curator-0", known) == same != anew
    assert member_id("curator-1", known) != same
