import random
import zlib
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.bus.codec import encode as record_of_event
from dart_streams.config import parse
from dart_streams.config.tasks import MAX_TASKS
from dart_streams.curation import difficulty, groups
from dart_streams.curation.changelog import claim_key, entry_key, parse_key, part_key, snapshot_key
from dart_streams.curation.journal import (
    MOST_STATE_BYTES,
    Claim,
    Entry,
    JournalGap,
    JournalInput,
    Snapshot,
    apply_all,
    encode,
    record_of,
    restore,
    snapshot_of,
    split_snapshot,
)
from dart_streams.curation.members import Finish
from dart_streams.curation.reducer import AgentProgress, InputRecord, advance, is_repeated
from topics import BY_NAME
from topics.trajectories import StepAction
from workers.curator.changelogs import MAX_RECORD_BYTES

CIRCLE = SimulatedCircle(parse({"env": {"slots": 4}}), task_set(5), Odds(faults=0.1, partial=0.1)).play_rounds(120)


def inputs_of(agent):
    """Return what an agent read, in one possible order, as records on the wire."""
    reads = []
    for topic in agent.inputs:
        for offset, written in enumerate(CIRCLE.logs.get(topic.name, [])):
            record = record_of_event(BY_NAME[topic.name], written.event, (), written.id)
            reads.append(JournalInput(topic.name, 0, offset, 1000 + offset, record.key, record.value, record.headers))
    return sorted(reads, key=lambda read: (read.offset, read.topic))


class Owner:
    """What an owner writes: a claim, a snapshot of what it found, then entries in slots used again after a snapshot."""

    def __init__(self, agent, incarnation=1, stored=None):
        self.agent, self.incarnation, self.stored = agent, incarnation, {} if stored is None else stored
        restored = restore(agent, self.stored, 0)
        self.state, self.sequence, self.slot = restored.state, restored.sequence, 0
        self.stored[claim_key(0, incarnation)] = encode(Claim("curator"))
        self.turn = 0
        self.stored |= self.written(restored.snapshot)
        self.turn = 1

    def batch(self, reads):
        before = self.state.progress.digest
        self.state, steps = apply_all(self.agent, self.state, [(read, record_of(read)) for read in reads])
        self.sequence += 1
        self.stored[entry_key(0, self.incarnation, self.slot)] = encode(Entry(self.sequence, before, reads))
        self.slot += 1
        return steps

    def snapshot(self):
        self.stored |= self.written(snapshot_of(self.sequence, self.state))
        self.slot, self.turn = 0, self.turn + 1

    def written(self, snapshot):
        """Return the records of a snapshot by key, in order."""
        parts, last = split_snapshot(snapshot, self.turn)
        keyed = {part_key(0, self.incarnation, number): part for number, part in parts.items()}
        return keyed | {snapshot_key(0, self.incarnation): last}


def without_owner(stored):
    """Return a journal's records under the keys of before there were incarnations."""
    keys = {name: parse_key(name) for name in stored}
    return {b"%d/%s" % (key.partition, key.kind): stored[name] for name, key in keys.items() if key.kind != b"claim"}


def decisions_of(steps):
    return [(read, step.decisions) for read, step in steps]


@given(
    st.sampled_from(sorted(CIRCLE.agents)),
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12),
)
def test_every_batch_restores_to_the_state_and_its_last_decisions(name, batches):
    agent = CIRCLE.agents[name]
    owner, reads = Owner(agent), inputs_of(agent)
    for size, snapshot in batches:
        batch, reads = reads[:size], reads[size:]
        if not batch:
            break
        steps = owner.batch(batch)
        restored = restore(agent, owner.stored, 0)
        assert restored.state == owner.state
        assert restored.sequence == owner.sequence
        assert restored.diverged is None
        assert decisions_of(restored.last) == decisions_of(steps)
        if snapshot:
            owner.snapshot()
            restored = restore(agent, owner.stored, 0)
            assert restored.state == owner.state
            assert (restored.entries, restored.last) == (0, [])


@given(st.sampled_from(sorted(CIRCLE.agents)), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_a_snapshot_in_parts_counts_once_its_last_record_is_written(name, sizes, data):
    agent = CIRCLE.agents[name]
    with patch("dart_streams.curation.journal.PART_BYTES", 100):
        owner, reads = Owner(agent), inputs_of(agent)
        for size in sizes:
            batch, reads = reads[:size], reads[size:]
            owner.batch(batch)
            records = owner.written(snapshot_of(owner.sequence, owner.state))
            assert len(records) > 2 and max(map(len, records.values())) <= 100
            written = data.draw(st.integers(0, len(records)))
            owner.stored |= dict(list(records.items())[:written])
            if written == len(records):
                owner.slot, owner.turn = 0, owner.turn + 1
            restored = restore(agent, owner.stored, 0)
            assert (restored.state, restored.sequence) == (owner.state, owner.sequence)
            assert (restored.entries == 0) == (written == len(records))
        lost = data.draw(st.sampled_from([*records][:-1]))
        with pytest.raises(JournalGap, match="damaged"):
            restore(agent, {key: value for key, value in (owner.stored | records).items() if key != lost}, 0)


@given(st.sampled_from(sorted(CIRCLE.agents)), st.lists(st.integers(1, 9), max_size=5), st.booleans())
def test_a_new_owners_snapshot_has_state_and_unpublished_inputs(name, batches, legacy):
    agent = CIRCLE.agents[name]
    former, reads, steps = Owner(agent), inputs_of(agent), []
    for size in batches:
        batch, reads = reads[:size], reads[size:]
        steps = former.batch(batch)
    stored = without_owner(former.stored) if legacy else former.stored
    owner = Owner(agent, 7, stored)
    alone = {name: value for name, value in owner.stored.items() if parse_key(name).incarnation == 7}
    restored = restore(agent, alone, 0)
    assert (restored.state, restored.sequence, restored.entries) == (former.state, former.sequence, 0)
    assert decisions_of(restored.last) == decisions_of(steps)


@given(
    st.sampled_from(sorted(CIRCLE.agents)),
    st.lists(st.tuples(st.sampled_from(["theirs", "ours"]), st.integers(1, 5), st.booleans()), max_size=12),
    st.booleans(),
)
def test_writes_of_a_former_owner_do_not_count(name, writes, forgotten):
    agent = CIRCLE.agents[name]
    former = Owner(agent, 3)
    ahead = inputs_of(agent)
    former.batch(ahead[:4])
    owner = Owner(agent, 4, former.stored)
    left = {former: ahead[6:], owner: ahead[4:]}
    if forgotten:
        for key in [key for key in owner.stored if parse_key(key).incarnation == 3]:
            del owner.stored[key]
    for who, size, snapshot in writes:
        writer = former if who == "theirs" else owner
        batch, left[writer] = left[writer][:size], left[writer][size:]
        if batch:
            writer.batch(batch)
        if snapshot:
            writer.snapshot()
    restored = restore(agent, owner.stored, 0)
    assert (restored.state, restored.sequence, restored.diverged) == (owner.state, owner.sequence, None)


def test_a_claim_and_a_snapshot_count_only_together():
    agent = CIRCLE.agents["difficulty"]
    owner, reads = Owner(agent, 2), inputs_of(agent)
    owner.batch(reads[:3])
    claimed = owner.stored | {claim_key(0, 5): encode(Claim("curator-1"))}
    stray = owner.stored | {snapshot_key(0, 6): encode(snapshot_of(9, agent.state()))}
    assert restore(agent, claimed, 0).state == restore(agent, stray, 0).state == owner.state


def test_a_journal_of_before_there_were_owners_is_restored():
    agent = CIRCLE.agents["groups"]
    former, reads = Owner(agent), inputs_of(agent)
    former.batch(reads[:5])
    former.snapshot()
    former.batch(reads[5:7])
    restored = restore(agent, without_owner(former.stored), 0)
    assert (restored.state, restored.sequence, restored.entries) == (former.state, 2, 1)


def test_nothing_stored_of_a_partition_is_the_empty_state():
    owner = Owner(agent := CIRCLE.agents["difficulty"])
    owner.batch(inputs_of(agent)[:3])
    for stored, partition in (({}, 0), (owner.stored, 1)):
        restored = restore(agent, stored, partition)
        assert (restored.state, restored.sequence, restored.last) == (agent.state(), 0, [])


def test_a_missing_batch_and_another_state_are_noticed():
    agent = CIRCLE.agents["difficulty"]
    owner, reads = Owner(agent), inputs_of(agent)
    for read in reads[:3]:
        owner.batch([read])
    del owner.stored[entry_key(0, 1, 1)]
    with pytest.raises(JournalGap, match="difficulty: the journal of partition 0 has no batch 2"):
        restore(agent, owner.stored, 0)
    owner, reads = Owner(agent), inputs_of(agent)
    for read in reads[:3]:
        owner.batch([read])
    owner.stored[entry_key(0, 1, 1)] = encode(Entry(2, "another", [reads[1]]))
    assert restore(agent, owner.stored, 0).diverged == 2


MEMORIES = msgspec.msgpack.encode({"memories": {"x": [[]] * 2**22}})


@pytest.mark.parametrize("state", [*map(zlib.compress, (bytes(300 << 20), b"\xc1", MEMORIES)), b"no state", b""])
def test_a_snapshot_that_is_damaged_or_expands_too_far_is_noticed(state):
    agent = CIRCLE.agents["difficulty"]
    stored = {claim_key(0, 1): encode(Claim("c")), snapshot_key(0, 1): encode(Snapshot(1, state))}
    with pytest.raises(JournalGap, match=r"difficulty: a snapshot (is|has memories above)"):
        restore(agent, stored, 0)


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


def test_the_state_of_as_many_tasks_as_a_run_may_have_fits_into_a_snapshot():
    """Partial credit of any size can't be compressed, and a name is some thirty characters long."""
    draw = random.Random(3)
    rewards = [draw.random() for _ in range(difficulty.WINDOW * 64)]
    tasks = {
        f"miniwob/click-checkboxes#{seed}": difficulty.Finishes(draw.sample(rewards, difficulty.WINDOW), 20)
        for seed in range(MAX_TASKS)
    }
    state = difficulty.DifficultyState(tasks=tasks)
    assert len(msgspec.msgpack.encode(state)) < MOST_STATE_BYTES
    assert is_restored(CIRCLE.agents["difficulty"], state)


def is_restored(agent, state):
    """Return whether a state comes back from a snapshot whose records Kafka takes."""
    owner = Owner(agent)
    owner.state = state
    owner.snapshot()
    assert max(map(len, owner.stored.values())) < MAX_RECORD_BYTES
    return restore(agent, owner.stored, 0).state == state


@pytest.mark.parametrize("steps", [60, 150])
def test_the_open_groups_of_ten_thousand_slots_fit_into_a_snapshot(steps):
    """Entropies and digests of screens can't be compressed."""
    draw = random.Random(5)
    values = [draw.random() for _ in range(10_000)]
    finish = Finish(0, "", 0.0, steps, [], 1, 2, [], [], "miniwob/click-checkboxes#0")
    episodes = [
        msgspec.structs.replace(
            finish,
            trajectory_id=f"{draw.getrandbits(128):032x}",
            step_entropies=draw.choices(values, k=steps),
            screens=[f"{draw.getrandbits(64):016x}" for _ in range(steps)],
            actions=draw.choices([StepAction(name="click", x=71, y=120), StepAction(name="type")], k=steps),
        )
        for _ in range(10_000)
    ]
    state = groups.GroupsState(groups={number: episodes[number::1_250] for number in range(1_250)})
    assert MAX_RECORD_BYTES < len(msgspec.msgpack.encode(state)) < MOST_STATE_BYTES
    assert is_restored(CIRCLE.agents["groups"], state)
