import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.bus.codec import encode as record_of_event
from dart_streams.config import parse
from dart_streams.curation.journal import (
    Entry,
    Gap,
    Input,
    apply_all,
    encode,
    entry_key,
    newest,
    record_of,
    restore,
    snapshot_key,
    snapshot_of,
)
from dart_streams.curation.reducer import AgentProgress, InputRecord, advance, is_repeated
from topics import BY_NAME


def circle(seed=0):
    made = SimulatedCircle(parse({"env": {"slots": 4}}), task_set(5), Odds(faults=0.1, partial=0.1), seed)
    for _ in range(120):
        made.settle()
        made.end_one()
        made.train()
    made.settle()
    return made


CIRCLE = circle()


def inputs_of(agent):
    """Return what an agent read, in one possible order, as records on the wire."""
    reads = []
    for topic in agent.inputs:
        for offset, written in enumerate(CIRCLE.logs.get(topic.name, [])):
            record = record_of_event(BY_NAME[topic.name], written.event, (), written.id)
            reads.append(Input(topic.name, 0, offset, 1000 + offset, record.key, record.value, record.headers))
    return sorted(reads, key=lambda read: (read.offset, read.topic))


class Table:
    """What a ledger writes, in a dictionary: entries since the last snapshot, in slots used again after it."""

    def __init__(self, agent):
        self.agent, self.stored, self.state, self.sequence, self.slot = agent, {}, agent.state(), 0, 0

    def batch(self, reads):
        before = self.state.progress.digest
        self.state, steps = apply_all(self.agent, self.state, [(read, record_of(read)) for read in reads])
        self.sequence += 1
        self.stored[entry_key(0, self.slot)] = encode(Entry(self.sequence, before, reads))
        self.slot += 1
        return steps

    def snapshot(self):
        self.stored[snapshot_key(0)] = encode(snapshot_of(self.sequence, self.state))
        self.slot = 0


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(CIRCLE.agents)),
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12),
)
def test_the_state_comes_back_whole_after_every_batch_with_its_last_decisions(name, batches):
    agent = CIRCLE.agents[name]
    table, reads = Table(agent), inputs_of(agent)
    for size, snapshot in batches:
        batch, reads = reads[:size], reads[size:]
        if not batch:
            break
        steps = table.batch(batch)
        restored = restore(agent, table.stored, 0)
        assert restored.state == table.state
        assert restored.sequence == table.sequence == newest(table.stored, 0)
        assert restored.diverged is None
        assert [(read, step.decisions) for read, step in restored.last] == [(r, s.decisions) for r, s in steps]
        if snapshot:
            table.snapshot()
            restored = restore(agent, table.stored, 0)
            assert restored.state == table.state
            assert (restored.entries, restored.last) == (0, [])


def test_nothing_stored_is_the_empty_state():
    agent = CIRCLE.agents["groups"]
    restored = restore(agent, {}, 0)
    assert (restored.state, restored.sequence, newest({}, 0)) == (agent.state(), 0, 0)


def test_partitions_are_kept_apart():
    agent = CIRCLE.agents["difficulty"]
    table = Table(agent)
    table.batch(inputs_of(agent)[:3])
    assert restore(agent, table.stored, 1).state == agent.state()


def test_a_missing_batch_is_noticed():
    agent = CIRCLE.agents["difficulty"]
    table, reads = Table(agent), inputs_of(agent)
    for read in reads[:3]:
        table.batch([read])
    del table.stored[entry_key(0, 1)]
    with pytest.raises(Gap, match="difficulty: the journal of partition 0 has no batch 2"):
        restore(agent, table.stored, 0)


def test_a_journal_that_gives_another_state_is_noticed():
    agent = CIRCLE.agents["difficulty"]
    table, reads = Table(agent), inputs_of(agent)
    for read in reads[:3]:
        table.batch([read])
    table.stored[entry_key(0, 1)] = encode(Entry(2, "another", [reads[1]]))
    assert restore(agent, table.stored, 0).diverged == 2


def test_the_digest_covers_every_decision_whole():
    agent = CIRCLE.agents["difficulty"]
    records = [record_of(read) for read in inputs_of(agent)[:10]]

    def digest(*, without=None):
        state = agent.state()
        for index, record in enumerate(records):
            if index != without:
                state = advance(agent, state, record).state
        return state.progress.digest

    assert digest() == digest()
    assert len({digest(without=index) for index in range(10)} | {digest()}) == 11


@pytest.mark.parametrize(
    ("identity", "repeated"),
    [
        ("budget/task-difficulty/0/5", True),
        ("budget/task-difficulty/0/4", True),
        ("budget/task-difficulty/0/6", False),
        ("budget/task-difficulty/1/5", False),
        ("groups/trajectories/0/5", False),
        ("018f2b3c-aaaa", False),
        ("", False),
    ],
)
def test_a_decision_not_newer_than_the_newest_of_its_agent_is_a_repeat(identity, repeated):
    progress = AgentProgress()
    assert not is_repeated(progress, InputRecord("rollout-budgets", 0, 0, None, "budget/task-difficulty/0/5"))
    assert is_repeated(progress, InputRecord("rollout-budgets", 0, 1, None, identity)) is repeated
