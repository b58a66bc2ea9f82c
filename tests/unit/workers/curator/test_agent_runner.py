"""The order of effects of a batch, and what a restart makes of it, with a table and a broker of a few lines."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from benchmarks.curation_world import task_set
from dart_streams.bus.clients import SendCoalescer
from dart_streams.bus.codec import Unencodable
from dart_streams.config import parse
from dart_streams.curation import journal
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.changelog import entry_key
from topics import task_difficulty
from workers.curator import agent_runner, input_queue
from workers.curator.agent_runner import AgentRunner
from workers.curator.changelogs import MAX_RECORD_BYTES, application_id, changelog_topics
from workers.curator.input_queue import InputQueue, enqueue_records
from workers.curator.journaled_state import input_of
from workers.curator.main import bind, create_app, member_id, serve


def difficulties(*offsets: int) -> list[str]:
    return [f"difficulty/trajectories/0/{offset}" for offset in offsets]


async def test_a_batch_is_journaled_before_it_is_published_and_acknowledged_last(broker):
    runner = await broker.owning()
    await runner.process(await runner._state(0), [broker.event(0), broker.event(1)])
    assert broker.effects == ["journaled", "published", "published", "acknowledged", "acknowledged"]
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0, 1)


async def test_each_agent_that_counts_fates_has_a_counter_of_its_own(broker):
    agents = bind_agents(parse({"feedback": {"enabled": True}}), task_set(3))
    runners = [
        AgentRunner(agent, broker.changelog, broker, SendCoalescer(0.0), 60.0, one_state=False) for agent in agents
    ]
    assert [runner.agent.name for runner in runners if runner.agent.name in runner.fates] == ["groups", "feedback"]
    assert all(hasattr(runner.agent.state(), "counts") == (runner.agent.name in runner.fates) for runner in runners)


async def test_an_oversized_decision_is_a_dead_letter_of_its_input(broker, monkeypatch):
    runner, encode = await broker.owning(), agent_runner.encode

    def encoded(topic, event, headers, record_id):
        if (topic, record_id) == (task_difficulty.TOPIC, "difficulty/trajectories/0/0"):
            raise Unencodable("too large")
        return encode(topic, event, headers, record_id)

    monkeypatch.setattr(agent_runner, "encode", encoded)
    await runner.process(await runner._state(0), [broker.event(0), broker.event(1)])
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(1)
    assert broker.effects.count("sent to trajectories.dlq") == 1
    assert broker.effects.count("acknowledged") == 2


async def test_a_record_read_again_is_acknowledged_and_nothing_else(broker):
    runner = await broker.owning()
    await runner.process(await runner._state(0), [broker.event(0)])
    broker.effects.clear()
    await runner.process(await runner._state(0), [broker.event(0)])
    assert broker.effects == ["acknowledged"]


async def test_skipped_inputs_are_read_from_the_topic_in_order(broker):
    broker.has(2, 3)
    runner = await broker.owning()
    await runner.process(await runner._state(0), [broker.event(0), broker.event(1), broker.event(4)])
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0, 1, 2, 3, 4)
    broker.effects.clear()
    await runner.process(await runner._state(0), [broker.event(2), broker.event(3), broker.event(5)])
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0, 1, 2, 3, 4, 5)
    assert broker.effects.count("acknowledged") == 3
    assert broker.inputs_read == 1


async def test_inputs_skipped_after_a_restart_are_read_from_the_topic(broker):
    runner = await broker.owning()
    await runner.process(await runner._state(0), [broker.event(0)])
    broker.has(1, 2)
    restarted = broker.runner()
    await restarted.process(await restarted._state(0), [broker.event(3)])
    assert broker.published[task_difficulty.TOPIC.name][-3:] == difficulties(1, 2, 3)


async def test_many_inputs_passed_over_take_as_many_journal_entries_as_they_need(broker, monkeypatch):
    monkeypatch.setattr(input_queue, "MAX_BATCH", 4)
    broker.has(*range(10))
    runner = await broker.owning()
    await runner.process(await runner._state(0), [broker.event(10)])
    assert broker.effects.count("journaled") == 4
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(*range(11))


async def test_gaps_and_undecodable_records_are_no_skipped_inputs(broker):
    runner = await broker.owning()
    state = await runner._state(0)
    await runner.process(state, [broker.event(0), broker.event(7)])
    assert broker.inputs_read == 1
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0, 7)
    broker.has(8, 9)
    await runner.process(state, [broker.event(8, b"{"), broker.event(9, b"{"), broker.event(10)])
    assert broker.inputs_read == 1
    assert broker.effects.count("sent to trajectories.dlq") == 2
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0, 7, 10)


async def test_journaled_decisions_are_published_after_a_restart(broker):
    runner = await broker.owning()
    state = await runner._state(0)
    broker.up = False
    with pytest.raises(ConnectionError):
        await runner.process(state, [broker.event(0)])
    assert broker.effects == ["journaled"]
    with pytest.raises(ConnectionError):
        await broker.runner()._state(0)
    broker.up = True
    restarted = await broker.runner()._state(0)
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(0)
    assert restarted.state == state.state


async def test_an_undecodable_record_is_dead_lettered(broker, monkeypatch):
    monkeypatch.setattr(agent_runner.dead_letters, "send", send := AsyncMock())
    runner = broker.runner()
    await runner.process(await runner._state(0), [broker.event(0, b"not json"), broker.event(1)])
    _, topic, original, reason = send.await_args.args
    assert (topic.name, original.offset, original.value) == ("trajectories", 0, b"not json")
    assert reason
    assert broker.published[task_difficulty.TOPIC.name] == difficulties(1)


async def test_a_drained_runner_begins_no_other_batch_and_leaves_a_snapshot(broker):
    runner = await broker.owning()
    running = asyncio.create_task(runner.run())
    await runner.queue.put(broker.event(0))
    while "acknowledged" not in broker.effects:  # noqa: ASYNC110 - a turn later it is
        await asyncio.sleep(0)
    await runner.drain()
    await runner.queue.put(broker.event(1))
    await asyncio.sleep(0.2)
    running.cancel()
    assert broker.effects == ["journaled", "published", "published", "acknowledged", "snapshot"]
    assert (await broker.runner()._state(0)).unpublished == []


async def test_records_from_before_a_rebalance_are_left_to_the_new_owner(broker):
    runner = broker.runner()
    running = asyncio.create_task(runner.run())
    await runner.queue.put(broker.event(0, generation=0))
    while runner.queue.qsize():  # noqa: ASYNC110 - a turn later it is taken
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    assert broker.effects == []


def queued(value: bytes | None = b"x", key: bytes | None = None, headers=None) -> SimpleNamespace:
    return SimpleNamespace(message=SimpleNamespace(key=key, value=value, headers=headers))


@pytest.mark.parametrize("part", ["key", "value", "headers"])
async def test_a_batch_of_large_records_fits_into_one_journal_entry(part):
    large = b"x" * 1_000_000
    queue = InputQueue()
    for _ in range(20):
        queue.put_nowait(queued(**{part: [("h", large)] if part == "headers" else large}))
    assert len(await queue.next_batch(SendCoalescer(0.0))) * len(large) < MAX_RECORD_BYTES


def test_a_header_without_a_value_is_not_journaled():
    message = SimpleNamespace(
        topic="p.trajectories", partition=0, offset=3, key=None, value=b"{}", headers=[("id", None), ("x", b"y")]
    )
    entry = journal.Entry(1, "", [input_of(message, "p.", 5)])
    assert journal.read_history({entry_key(0, 0, 0): journal.encode(entry)}, 0)[1] == [entry]
    assert entry.inputs[0].headers == [("x", b"y")]


async def test_a_batch_has_at_most_as_many_records_as_a_queue(monkeypatch):
    queue = InputQueue()

    class Stream:
        def noack(self):
            return self

        async def events(self):
            for _ in range(input_queue.MAX_BATCH + 3):
                yield queued()

    pace = SendCoalescer(60.0)
    await pace.wait()
    await asyncio.sleep(0)
    filling = asyncio.create_task(enqueue_records(queue, Stream()))
    async with asyncio.timeout(60):
        assert len(await queue.next_batch(pace)) == input_queue.MAX_BATCH
    await filling
    assert len(await queue.next_batch(SendCoalescer(0.0))) == 3


async def test_agents_of_one_pace_begin_together_and_a_lone_record_at_once():
    pace, queues = SendCoalescer(0.05), [InputQueue() for _ in range(3)]
    event = queued()
    releases: list[float] = []

    async def take(queue: InputQueue, records: int) -> None:
        for _ in range(records):
            queue.put_nowait(event)
        assert len(await queue.next_batch(pace)) == records
        releases.append(pace._next_s)

    await take(queues[0], 1)
    await asyncio.gather(*(take(queue, 2) for queue in queues))
    lone, *others = releases
    assert min(others) - lone >= 0.05
    assert len(set(others)) == 1


async def test_agents_are_bound_to_tables_whose_changelogs_exist(tmp_path):
    config = parse({"run": {"state_dir": str(tmp_path)}})
    app = create_app(config, "curator-0")
    publisher = SimpleNamespace(bus=config.bus)
    runners = [
        bind(app, config, agent, publisher, SendCoalescer(0.0), "curator-0")
        for agent in bind_agents(config, task_set(3))
    ]
    changelogs = {spec.name: spec.partitions for spec in changelog_topics(config)}
    assert {table.changelog_topic_name: table.partitions for table in app.tables.values()} == changelogs
    assert app.conf.id == application_id(config)
    assert list(app.agents) == [runner.agent.name for runner in runners]
    stop = asyncio.Event()
    stop.set()
    await serve(runners, 1.0, stop)


def test_the_static_member_id_changes_with_a_recreated_topic():
    known = {"trajectories": "a", "weights": "b"}
    same, anew = (member_id("curator-0", ids) for ids in (dict(reversed(known.items())), known | {"weights": "c"}))
    assert member_id("curator-0", known) == same != anew
    assert member_id("curator-1", known) != same
    assert create_app(parse({}), anew).conf.consumer_group_instance_id == anew
