import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.bus.codec import encode
from dart_streams.config import parse
from dart_streams.curation.journal import (
    Entry,
    JournalInput,
    MissingInputs,
    apply_all,
    rebuild,
    record_of,
    state_of,
    with_records,
)
from dart_streams.curation.reducer import advance
from topics import BY_NAME


class Logged(SimulatedCircle):
    """A circle that logs what each agent applied, with the inputs as on the wire."""

    def __init__(self, *args):
        self.entries, self.inputs = {}, {}
        super().__init__(*args)

    def deliver(self, agent, topic, offset):
        written = self.logs[topic][offset]
        record = encode(BY_NAME[topic], written.event, (), written.id)
        read = JournalInput(topic, 0, offset, 0, record.key, record.value, record.headers)
        self.inputs[topic, 0, offset] = read
        step = advance(agent, self.states[agent.name], record_of(read))
        self.states[agent.name] = step.state
        self.entries.setdefault(agent.name, []).append(step.applied)
        for decision in step.decisions:
            self.publish(decision.topic.name, decision.id, decision.event)
        return len(step.decisions)


CIRCLE = Logged(parse({"env": {"slots": 4}}), task_set(5), Odds(faults=0.1, partial=0.1)).play_rounds(120)


@pytest.mark.parametrize("name", sorted(CIRCLE.agents))
def test_log_and_topics_rebuild_the_state_and_its_last_decisions(name):
    agent = CIRCLE.agents[name]
    found = rebuild(agent, CIRCLE.entries[name], CIRCLE.inputs, last=5)
    assert found.state == CIRCLE.states[name]
    assert found.diverged is None
    assert [step.applied for _, step in found.last] == CIRCLE.entries[name][-5:]


@given(st.sampled_from(sorted(CIRCLE.agents)), st.integers(0, 300), st.integers(1, 40))
def test_entries_logged_twice_change_nothing(name, at, length):
    entries = CIRCLE.entries[name]
    twice = entries[: at + length] + entries[at:]
    assert rebuild(CIRCLE.agents[name], twice, CIRCLE.inputs, last=5).state == CIRCLE.states[name]


def journal_of(name, size):
    """Return the entries of an agent's whole journal, in batches of ``size``."""
    agent, state, entries = CIRCLE.agents[name], CIRCLE.agents[name].state(), []
    logged = [CIRCLE.inputs[e.source.topic, e.source.partition, e.source.offset] for e in CIRCLE.entries[name]]
    for start in range(0, len(logged), size):
        batch = logged[start : start + size]
        entries.append(Entry(len(entries) + 1, state.progress.digest, batch))
        state, _ = apply_all(agent, state, with_records(batch))
    return entries


@given(
    st.sampled_from(sorted(CIRCLE.agents)), st.integers(1, 9), st.integers(0, 30), st.integers(0, 40), st.integers(0, 9)
)
def test_batches_left_of_the_journal_give_back_what_was_not_logged_yet(name, size, kept, unlogged, last):
    agent, entries = CIRCLE.agents[name], CIRCLE.entries[name]
    journaled = journal_of(name, size)[-kept - 1 :]
    covered = sum(len(entry.inputs) for entry in journaled)
    logged = entries[: len(entries) - min(unlogged, covered)]
    found = rebuild(agent, logged, CIRCLE.inputs, last, journaled)
    assert found.state == CIRCLE.states[name]
    again, steps = apply_all(agent, state_of(agent, found.snapshot), with_records(found.snapshot.unpublished))
    assert again == found.state
    assert [step.applied for _, step in steps] == [step.applied for _, step in found.last]
    assert [step.applied for _, step in steps] == entries[max(0, len(logged) - last) :]


def test_a_batch_on_a_state_unknown_to_the_log_is_left_out():
    agent, entries = CIRCLE.agents["difficulty"], CIRCLE.entries["difficulty"]
    stray = Entry(1, "a state of another history", journal_of("difficulty", 3)[-1].inputs)
    known = rebuild(agent, entries[:-3], CIRCLE.inputs, 0)
    assert rebuild(agent, entries[:-3], CIRCLE.inputs, 0, [stray]).state == known.state


def test_other_settings_and_an_input_that_is_gone_are_noticed():
    other = SimulatedCircle(parse({"curation": {"budget": {"dynamic": False}}}), task_set(5), Odds()).agents["budget"]
    found = rebuild(other, CIRCLE.entries["budget"], CIRCLE.inputs, last=1)
    assert found.diverged == ("task-difficulty", 0, 0)
    inputs = {place: read for place, read in CIRCLE.inputs.items() if place != ("trajectories", 0, 7)}
    with pytest.raises(MissingInputs, match=r"groups agent .* trajectories\[0\] no longer holds record 7"):
        rebuild(CIRCLE.agents["groups"], CIRCLE.entries["groups"], inputs, last=1)
