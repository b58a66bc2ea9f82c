"""Properties of the four reducers together: the circle in memory, in any interleaving, with faults and repeats."""

from collections import defaultdict
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.curation_world import Odds, SimulatedCircle, play, task_set
from dart_streams.config import parse
from dart_streams.curation import order_tracker
from dart_streams.curation.order_tracker import parse_order_id
from dart_streams.curation.reducer import InputRecord, advance
from dart_streams.curation.staleness import curated_share, group_capacity
from topics.transitions import ORDER, advance_stage, outcome_stage

SHAPES = st.fixed_dictionaries(
    {
        "slots": st.sampled_from([1, 3, 16]),
        "groups_per_step": st.sampled_from([1, 2, 8]),
        "max_staleness": st.integers(0, 3),
        "attempts": st.integers(1, 3),
        "tasks": st.sampled_from([1, 2, 7, 30]),
        "faults": st.sampled_from([0.0, 0.1, 0.6]),
        "lift": st.sampled_from([0.0, 0.05]),
        "seed": st.integers(0, 10_000),
    }
)


def circle_of(shape, kind=SimulatedCircle, **curation):
    config = parse(
        {
            "env": {"slots": shape["slots"]},
            "trainer": {"groups_per_step": shape["groups_per_step"]},
            "curation": {"max_staleness": shape["max_staleness"], **curation},
        }
    )
    odds = Odds(faults=shape["faults"], partial=0.1, lift=shape["lift"])
    with mock.patch.object(order_tracker, "ORDER_ATTEMPTS", shape["attempts"]):
        return kind(config, task_set(shape["tasks"]), odds, shape["seed"])


def turn(circle, trainer=0.5):
    """Let a rollout end, and agents and trainer do some of what they could."""
    if circle.running:
        circle.end_one()
    for _ in range(circle.random.randrange(10)):
        if turns := circle.waiting():
            circle.advance(*circle.random.choice(turns))
    if circle.random.random() < trainer:
        circle.train(circle.random.randrange(3))


def turned(shape, turns=200, trainer=0.5, kind=SimulatedCircle):
    """Return a circle of a shape after this number of turns."""
    circle = circle_of(shape, kind)
    for _ in range(turns):
        turn(circle, trainer)
    return circle


def events(circle, topic):
    return [written.event for written in circle.logs.get(topic, [])]


@given(SHAPES)
def test_every_order_goes_through_legal_stages_only(shape):
    circle = turned(shape, turns=120)
    circle.settle()
    finishes = {event.order_id: event for event in events(circle, "trajectories")}
    curated = {member.trajectory_id for group in events(circle, "curated") for member in group.members}
    trained = {member.trajectory_id for group in circle.trainer.trained for member in group.members}
    stages: dict[tuple[str, int], str] = {}
    for order in events(circle, "rollout-orders"):
        sample = order.group_id, order.sample
        before, stages[sample] = stages.get(sample), "ordered"
        assert (order.attempt == 0) if before is None else advance_stage(ORDER, before, "ordered")
        if (finish := finishes.get(order.order_id)) is None:
            continue
        ended = outcome_stage(finish.outcome)
        passed = ["running", ended]
        passed += ["exhausted"] if ended == "faulted" and order.attempt + 1 == shape["attempts"] else []
        passed += ["curated"] if finish.trajectory_id in curated else []
        passed += ["trained"] if finish.trajectory_id in trained else []
        for stage in passed:
            stages[sample] = advance_stage(ORDER, stages[sample], stage)
    assert stages


@settings(max_examples=15, deadline=None)
@given(SHAPES)
def test_the_circle_never_stops_while_rollouts_end(shape):
    circle = circle_of(shape)
    for _ in range(200):
        turn(circle)
        if not circle.running:
            circle.settle()
        if not circle.running:
            circle.train()
            circle.settle()
        assert circle.running


class Watched(SimulatedCircle):
    """A circle that checks the room for groups each time dispatch has opened one."""

    def deliver(self, agent, topic, offset):
        before = self.states["dispatch"].next_group
        decided = super().deliver(agent, topic, offset)
        state = self.states["dispatch"]
        if state.next_group > before:
            room = group_capacity(self.config.trainer.groups_per_step, self.config.curation.max_staleness)
            share = curated_share([number in state.counted for number in state.closed])
            assert share * len(state.groups) + max(0, state.curated - state.consumed) <= room
        return decided


@settings(max_examples=15, deadline=None)
@given(SHAPES)
def test_groups_are_opened_only_while_the_staleness_bound_has_room(shape):
    turned(shape, trainer=0.2, kind=Watched)


@settings(max_examples=15, deadline=None)
@given(SHAPES)
def test_rollouts_that_end_in_order_are_never_trained_on_past_the_bound(shape):
    shape = {**shape, "max_staleness": max(1, shape["max_staleness"]), "faults": 0.0}
    circle = circle_of(shape)
    checked = 0
    for _ in range(200):
        if circle.running:
            circle.end_one(0)
        circle.settle()
        if not circle.running or circle.random.random() < 0.2:
            circle.train(circle.random.randrange(1, 4))
            circle.settle()
        for index in range(checked, len(circle.trainer.trained)):
            version = index // shape["groups_per_step"]
            for member in circle.trainer.trained[index].members:
                assert member.version_min is None or version - member.version_min <= shape["max_staleness"]
        checked = len(circle.trainer.trained)


class Granting(SimulatedCircle):
    """A circle that notes the rollouts that dispatch was granted for a task's next group when it opens one."""

    def __init__(self, *arguments):
        self.newest, self.granted = {}, {}
        super().__init__(*arguments)

    def deliver(self, agent, topic, offset):
        if (agent.name, topic) == ("dispatch", "rollout-budgets"):
            budget = self.logs[topic][offset].event
            self.newest[budget.task_id] = budget.rollouts
        return super().deliver(agent, topic, offset)

    def publish(self, topic, identity, event):
        if topic == "rollout-orders":
            base = self.config.curation.budget.base
            self.granted.setdefault(event.group_id, self.newest.get(event.task_id, base))
        super().publish(topic, identity, event)


@settings(max_examples=15, deadline=None)
@given(SHAPES)
def test_every_group_and_trajectory_is_used_at_most_once(shape):
    circle = turned(shape, kind=Granting)
    granted = {}
    for order in events(circle, "rollout-orders"):
        where = parse_order_id(order.order_id)
        assert granted.setdefault(where.number, order.group_size) == order.group_size
        assert order.group_size in (circle.granted[order.group_id], 1)
        assert where.sample < order.group_size
        assert where.attempt < shape["attempts"]
    orders = [order.order_id for order in events(circle, "rollout-orders")]
    assert len(set(orders)) == len(orders)
    groups = events(circle, "curated")
    assert len({group.group_id for group in groups}) == len(groups)
    online = [member.trajectory_id for group in groups for member in group.members if member.source == "online"]
    assert len(set(online)) == len(online)
    for group in groups:
        assert 2 <= len(group.members) <= granted[int(group.group_id[1:])]
        assert len({member.reward for member in group.members}) > 1
        assert sum(member.source == "pool" for member in group.members) <= 1


@settings(max_examples=12, deadline=None)
@given(SHAPES)
def test_records_that_come_again_change_nothing(shape):
    circle = circle_of(shape)
    for _ in range(150):
        turn(circle)
        agent = circle.random.choice(list(circle.agents.values()))
        topic = circle.random.choice(agent.inputs).name
        read = circle.positions.get((agent.name, topic), 0)
        if read:
            before = msgspec.msgpack.encode(circle.states[agent.name])
            assert circle.deliver(agent, topic, circle.random.randrange(read)) == 0
            assert msgspec.msgpack.encode(circle.states[agent.name]) == before


@settings(max_examples=12, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_a_restart_at_any_point_changes_no_decision(shape, when):
    undisturbed, restarted = circle_of(shape), circle_of(shape)
    for step in range(120):
        turn(undisturbed)
        turn(restarted)
        if (step + when) % 7 == 0:
            for name in restarted.agents:
                packed = msgspec.msgpack.encode(restarted.states[name])
                restarted.states[name] = msgspec.msgpack.decode(packed, type=restarted.agents[name].state)
    assert undisturbed.logs == restarted.logs
    assert undisturbed.states == restarted.states


def decided(agent, records):
    """Return the decisions of an agent over records, from its empty state."""
    state, decisions = agent.state(), []
    for record in records:
        step = advance(agent, state, record)
        state = step.state
        decisions += step.decisions
    return decisions, state


def repeated(log, random):
    """Return a log in which some runs of records were published twice, as around a crash of who wrote them."""
    out, index = [], 0
    while index < len(log):
        length = random.randrange(1, 6)
        out += log[index : index + length]
        if random.random() < 0.3:
            back = random.randrange(1, 12)
            out += log[max(0, index + length - back) : index + length]
        index += length
    return out


@settings(max_examples=12, deadline=None)
@given(SHAPES, st.sampled_from(["budget", "dispatch"]))
def test_decisions_published_twice_are_applied_once(shape, name):
    circle = turned(shape)
    circle.settle()
    agent = circle.agents[name]
    topic = "task-difficulty" if name == "budget" else "rollout-budgets"
    weights = InputRecord("weights", 0, 0, circle.logs["weights"][0].event)
    first = [] if name == "budget" else [weights]
    log = circle.logs[topic]
    once = [InputRecord(topic, 0, offset, w.event, w.id) for offset, w in enumerate(log)]
    twice = [InputRecord(topic, 0, offset, w.event, w.id) for offset, w in enumerate(repeated(log, circle.random))]
    straight, repeats = (decided(agent, first + records)[0] for records in (once, twice))
    assert [one.event for one in straight] == [one.event for one in repeats]


class Noted(SimulatedCircle):
    """A circle that notes in which order dispatch reads its three topics."""

    def __init__(self, *args):
        self.noted = []
        super().__init__(*args)

    def deliver(self, agent, topic, offset):
        if agent.name == "dispatch":
            self.noted.append((topic, self.logs[topic][offset]))
        return super().deliver(agent, topic, offset)


def numbered(inputs):
    """Return written records as records with the offsets that they have if each topic has them in this order."""
    offsets = defaultdict(int)
    records = []
    for topic, written in inputs:
        records.append(InputRecord(topic, 0, offsets[topic], written.event, written.id))
        offsets[topic] += 1
    return records


@settings(max_examples=12, deadline=None)
@given(SHAPES)
def test_dispatch_ignores_repeats_on_all_three_topics(shape):
    circle = turned(shape, kind=Noted)
    circle.settle()
    agent, twice = circle.agents["dispatch"], []
    for topic, written in circle.noted:
        twice.append((topic, written))
        if circle.random.random() < 0.4:
            earlier = [one for name, one in twice if name == topic][-1 if topic == "weights" else -8 :]
            twice += [(topic, one) for one in earlier]
    straight, repeats = (decided(agent, numbered(inputs))[0] for inputs in (circle.noted, twice))
    assert straight == repeats
    assert [(one.id, one.event) for one in straight] == [(w.id, w.event) for w in circle.logs["rollout-orders"]]


@settings(max_examples=12, deadline=None)
@given(SHAPES)
def test_trajectories_published_twice_or_finished_twice_are_counted_once(shape):
    circle = turned(shape)
    log = [written.event for written in circle.logs.get("trajectories", [])]
    twice = [
        msgspec.structs.replace(event, trajectory_id=f"{event.trajectory_id}-{circle.random.randrange(2)}")
        for event in repeated(log, circle.random)
    ]
    seen = set()
    first = [event for event in twice if event.order_id not in seen and not seen.add(event.order_id)]
    for name in ("difficulty", "groups"):
        agent = circle.agents[name]
        straight, repeats = (
            decided(agent, [InputRecord("trajectories", 0, offset, event) for offset, event in enumerate(events)])[0]
            for events in (first, twice)
        )
        assert [one.event for one in straight] == [one.event for one in repeats]


@settings(max_examples=12, deadline=None)
@given(SHAPES)
def test_the_order_across_tasks_does_not_matter_to_difficulty_and_groups(shape):
    circle = turned({**shape, "lift": 0.0, "max_staleness": 3}, trainer=0)
    log = events(circle, "trajectories")
    by_task = sorted(log, key=lambda event: event.task_id)
    for name in ("difficulty", "groups"):
        outcomes = []
        for one in (log, by_task):
            records = [InputRecord("trajectories", 0, offset, event) for offset, event in enumerate(one)]
            per_task = defaultdict(list)
            for decision in decided(circle.agents[name], records)[0]:
                per_task[decision.event.task_id].append(decision.event)
            outcomes.append(per_task)
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "switched_off",
    [
        {"budget": {"dynamic": False}},
        {"length": {"dynamic": False}},
        {"entropy": {"keep": 1.0}},
        {"pool": {"enabled": False}},
        {"dispatch": {"choice": "even"}},
    ],
)
def test_each_feature_can_be_switched_off_and_the_circle_goes_on(switched_off):
    config = parse({"curation": switched_off, "trainer": {"groups_per_step": 2}})
    circle = SimulatedCircle(config, task_set(10), Odds(faults=0.05))
    for _ in range(400):
        turn(circle)
        circle.settle()
        circle.train()
        circle.settle()
    assert circle.trainer.version > 10
    orders = events(circle, "rollout-orders")
    members = [member for group in events(circle, "curated") for member in group.members]
    if "budget" in switched_off:
        assert {order.group_size for order in orders} == {8}
    if "length" in switched_off:
        assert {order.max_steps for order in orders} == {10}
    if "pool" in switched_off:
        assert {member.source for member in members} == {"online"}
    if "entropy" in switched_off:
        whole = {t.trajectory_id: t.steps for t in events(circle, "trajectories")}
        assert all(member.selected == list(range(whole[member.trajectory_id])) for member in members)


def test_a_lost_order_holds_nothing_up_for_ever():
    config = parse({"env": {"slots": 2}, "trainer": {"groups_per_step": 4}})
    circle = SimulatedCircle(config, task_set(5), Odds())
    circle.settle()
    lost = circle.running.pop(0)[0]
    for _ in range(2600):
        circle.end_one(0)
        circle.settle()
        circle.train()
        circle.settle()
    assert circle.states["dispatch"].abandoned == 1
    assert circle.states["groups"].counts.abandoned == 1
    late = play(lost, 0, Odds())
    circle.publish("trajectories", "late", late)
    decisions = {topic: len(log) for topic, log in circle.logs.items() if topic != "trajectories"}
    circle.settle()
    assert decisions == {topic: len(log) for topic, log in circle.logs.items() if topic != "trajectories"}


def test_memory_does_not_grow_with_the_number_of_finished_groups():
    config = parse({"env": {"slots": 8}, "trainer": {"groups_per_step": 4}})
    circle = SimulatedCircle(config, task_set(20), Odds(faults=0.02))
    circle.settle()
    sizes = defaultdict(list)
    for done in range(1, 9_001):
        circle.end_one()
        circle.settle()
        circle.train()
        circle.settle()
        if done % 3000 == 0:
            for name, state in circle.states.items():
                sizes[name].append(len(msgspec.msgpack.encode(state)))
    for name, (_, second, third) in sizes.items():
        assert third < second * 1.15 + 500, (name, sizes[name])


def test_retention_keeps_what_an_agent_has_not_read_yet():
    """Also an agent that has read nothing so far, beside another reader that has read all."""
    circle = SimulatedCircle(parse({}), task_set(2), Odds())
    assert circle.poll("weights") and circle.waiting()
    circle.delete_read()
    circle.settle()
    assert circle.running, "dispatch has read the first weights"
