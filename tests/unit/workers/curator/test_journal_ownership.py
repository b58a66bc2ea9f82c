"""One owner for each journal: what a new owner does, what becomes of a stale one, and how a damaged journal heals."""

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest
import structlog

from dart_streams.curation.changelog import entry_key
from dart_streams.curation.journal import apply_all, with_records
from tests.unit.workers.curator.broker import CONFIG, DIFFICULTY, Broker, process
from topics import task_difficulty
from workers.curator import journaled_state
from workers.curator.durable_agent import DurableAgent
from workers.curator.journal_writer import OwnershipLost, Replaced
from workers.curator.journaled_state import input_of


async def test_a_new_owner_publishes_only_once_its_snapshot_counts(broker):
    agent = await broker.owning()
    broker.up = False
    with pytest.raises(ConnectionError):
        await process(agent, broker.event(0))
    successor = Broker(broker.topic)
    await successor.recover()
    await successor.agent().owned_state(0)
    assert successor.effects == ["claimed", "snapshot", *["deleted"] * 3, "published", "published"]
    assert successor.published[task_difficulty.TOPIC.name] == ["difficulty/trajectories/0/0"]


async def test_a_curator_that_lost_its_partition_publishes_nothing_and_ends(broker):
    stale, owner = await broker.owning(), Broker(broker.topic)
    await process(await owner.owning(), broker.event(0))
    broker.effects.clear()
    with pytest.raises(OwnershipLost, match=r"\[0\] belongs to another curator process now \(curator-0\)"):
        await process(stale, broker.event(1))
    assert broker.effects == ["journaled"]
    assert broker.published == {}
    last = Broker(broker.topic)
    assert (await last.agent().owned_state(0)).state.progress.applied == {"trajectories/0": 0}


async def test_a_stale_curator_drains_without_touching_the_owners_journal(broker):
    stale, owner = await broker.owning(), Broker(broker.topic)
    await process(stale, broker.event(0))
    ours = await owner.owning()
    await process(ours, broker.event(1))
    with pytest.raises(OwnershipLost):
        await stale.drain()
    await process(ours, broker.event(2))
    restored = await Broker(broker.topic).agent().owned_state(0)
    assert restored.state == ours.states[0].state
    assert restored.sequence == 3


async def test_a_write_that_is_cancelled_still_takes_the_brokers_answer(broker):
    agent, asked, sent = await broker.owning(), asyncio.Event(), asyncio.get_running_loop().create_future()
    broker.send_changelog = Mock(side_effect=lambda *_: asked.set() or sent)
    writing = asyncio.create_task(process(agent, broker.event(0)))
    await asked.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    sent.set_result(None)


async def test_a_rebalanced_partition_is_left_without_an_error(broker):
    agent, owner = await broker.owning(), Broker(broker.topic, "curator-1")
    broker.effects.clear()

    async def rebalanced(what: str) -> None:
        if what == "send":
            await owner.owning()
            broker.app.consumer_generation_id = 2

    broker.request = rebalanced
    await process(agent, broker.event(0))
    assert broker.effects == ["journaled"]
    assert agent.states == {}


async def test_a_replaced_curator_ends_although_a_rebalance_readmits_it(broker):
    stale, successor = await broker.owning(), Broker(broker.topic)
    await successor.owning()
    broker.effects.clear()

    async def rebalanced(what: str) -> None:
        if what == "sent":
            broker.app.consumer_generation_id = 2

    broker.request = rebalanced
    with pytest.raises(Replaced, match=r"process now \(curator-0\).*give each further curator another id"):
        await process(stale, broker.event(0))
    assert broker.effects == ["journaled"]


@pytest.mark.parametrize("idle", [False, True])
async def test_a_replaced_curator_does_not_claim_its_partition_back(broker, idle):
    stale, successor = await broker.owning(), Broker(broker.topic)
    ours = await successor.owning()
    await process(ours, broker.event(0))
    broker.effects.clear()
    broker.app.consumer_generation_id = 2
    later = broker.event(1, generation=2)
    with pytest.raises(Replaced):
        await (watching(stale) if idle else process(stale, later))
    assert broker.effects == []
    await process(ours, broker.event(1))


async def watching(agent: DurableAgent) -> None:
    """Receive an assignment, with nothing to process."""
    agent.assigned.set()
    async with asyncio.timeout(60):
        await agent.keep_watch()


async def test_an_assignment_without_a_replacement_changes_nothing(broker):
    agent, other, read = await broker.owning(), Broker(broker.topic, "curator-1"), asyncio.Event()
    await other.owning()

    broker.request = AsyncMock(side_effect=lambda what: what == "read" and read.set())
    broker.app.consumer_generation_id = 2
    watch = asyncio.create_task(watching(agent))
    await read.wait()
    later = broker.event(0, generation=2)
    await process(agent, later)
    assert not watch.done()
    watch.cancel()
    assert agent.states[0].state.progress.applied == {"trajectories/0": 0}


async def test_a_partition_is_claimed_again_after_a_rebalance(broker):
    agent = await broker.owning()
    await process(agent, broker.event(0))
    broker.effects.clear()
    broker.app.consumer_generation_id = 2
    await agent.drain()
    assert broker.effects == []
    agent.processing.release()
    later = broker.event(1, generation=2)
    await process(agent, later)
    assert broker.effects[0] == "claimed"
    assert agent.states[0].state.progress.applied == {"trajectories/0": 1}


async def test_a_changelog_without_other_writers_is_not_read_again(broker):
    agent = await broker.owning()
    for offset in range(3):
        await process(agent, broker.event(offset))
    await agent.drain()
    assert broker.reads == 0


async def test_a_changelog_that_was_made_anew_under_a_curator_ends_it(broker):
    agent = await broker.owning()
    broker.topic.records.clear()
    broker.topic.end = 0
    with pytest.raises(OwnershipLost, match="was deleted and made again"):
        await process(agent, broker.event(0))
    assert broker.published == {}


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "no batch 2"), (b"\xc1", "a damaged entry/1"), (b"\x94\2\xa0\x90" + b"\x91" * 5000, "a damaged entry/1")],
)
async def test_a_journal_without_one_of_its_batches_is_rebuilt(broker, monkeypatch, value, reason):
    agent = await broker.owning()
    events = [broker.event(offset) for offset in range(4)]
    for event in events:
        await process(agent, event)
    incarnation = agent.states[0].writer.incarnation
    [lost] = (offset for offset, (key, _) in broker.topic.records.items() if key == entry_key(0, incarnation, 1))
    broker.topic.records[lost] = (entry_key(0, incarnation, 1), value)
    reads = [input_of(event.message, CONFIG.bus.prefix, 1500) for event in events]
    _, steps = apply_all(DIFFICULTY, DIFFICULTY.state(), with_records(reads))

    log, inputs = [step.applied for _, step in steps[:3]], {(read.topic, 0, read.offset): read for read in reads}
    monkeypatch.setattr(journaled_state, "read_log_entries", AsyncMock(return_value=log))
    monkeypatch.setattr(journaled_state, "read_inputs", AsyncMock(return_value=inputs))
    successor = Broker(broker.topic)
    with structlog.testing.capture_logs() as lines:
        healed = await successor.agent().owned_state(0)
    assert healed.state == agent.states[0].state
    [warning] = (line["event"] for line in lines if line["log_level"] == "warning")
    assert f"(difficulty: the journal of partition 0 has {reason}): state rebuilt from the topics" in warning
    assert (await Broker(broker.topic).agent().owned_state(0)).state == healed.state
