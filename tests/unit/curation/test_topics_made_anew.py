"""An input that was deleted and made again is read from its beginning, and what is decided goes on being new."""

import msgspec
import pytest

from dart_streams.curation.in_memory import TopicLog
from dart_streams.curation.reducer import InputRecord, advance, note_topic_ids
from tests.unit.curation.test_lost_orders import circle_of, goes_on, heals
from topics import curated, rollout_budgets, task_difficulty, trajectories

INPUTS = [topic.TOPIC.name for topic in (trajectories, task_difficulty, rollout_budgets, curated)]


def ids(circle, **changed):
    names = {topic.name for agent in circle.agents.values() for topic in agent.inputs}
    return {name: changed.get(name.replace("-", "_"), f"first {name}") for name in names}


def note(circle, known):
    return {name: note_topic_ids(agent, circle.states[name], known) for name, agent in circle.agents.items()}


@pytest.mark.parametrize("topic", INPUTS)
def test_a_circle_goes_on_when_a_topic_is_made_anew(topic):
    circle = circle_of(7)
    assert not any(note(circle, ids(circle)).values())
    goes_on(circle, groups=10)
    circle.logs[topic] = TopicLog()
    for offsets in (circle.positions, circle.unread):
        offsets.update(dict.fromkeys([key for key in offsets if key[1] == topic], 0))
    anew = note(circle, ids(circle, **{topic.replace("-", "_"): "second"}))
    readers = {name for name, agent in circle.agents.items() if topic in {one.name for one in agent.inputs}}
    assert {name for name, topics in anew.items() if topics} == readers
    if topic == curated.TOPIC.name:
        circle.trainer.trained.clear()
        circle.trainer.waiting.clear()
    heals(circle)


def test_ids_of_decisions_only_grow_after_a_topic_is_recreated():
    circle = circle_of(8)
    goes_on(circle, groups=3)
    agent, state = circle.agents["difficulty"], circle.states["difficulty"]
    note_topic_ids(agent, state, {trajectories.TOPIC.name: "first"})
    before = state.progress.applied["trajectories/0"]
    event = msgspec.structs.replace(circle.logs["trajectories"][0].event, purpose="demonstration")
    assert advance(agent, state, InputRecord("trajectories", 0, 0, event)).applied is None
    assert note_topic_ids(agent, state, {trajectories.TOPIC.name: "second"}) == ["trajectories"]
    result = advance(agent, state, InputRecord("trajectories", 0, 0, event))
    assert [decision.id for decision in result.decisions] == [f"difficulty/trajectories/0/{before + 1}"]
    assert result.applied.source.offset == 0
    assert note_topic_ids(agent, state, {trajectories.TOPIC.name: "second"}) == []
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=type(state)) == state


def test_a_broker_that_knows_no_ids_changes_nothing():
    circle = circle_of(9)
    goes_on(circle, groups=3)
    before = msgspec.msgpack.encode(circle.states["dispatch"])
    assert note_topic_ids(circle.agents["dispatch"], circle.states["dispatch"], {}) == []
    assert msgspec.msgpack.encode(circle.states["dispatch"]) == before


def test_curated_groups_that_are_gone_with_their_topic_are_not_waited_for():
    circle = circle_of(10)
    note(circle, ids(circle))
    goes_on(circle, groups=10)
    dispatch = circle.states["dispatch"]
    dispatch.curated = dispatch.consumed + 3
    note(circle, ids(circle, trajectories="second"))
    assert dispatch.curated == dispatch.consumed + 3
    note(circle, ids(circle, trajectories="second", curated="second"))
    assert dispatch.curated == dispatch.consumed
