"""Rollouts that a person took over: whose steps are credited, imitated and counted, and that a replay is equal."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import bundle as bundles
from benchmarks.curation_world import Odds, play, task_set
from console.bundles.replay import replay
from console.runs.bundle import Bundle
from dart_streams import stateless_random
from dart_streams.config import parse
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.in_memory import Subscription
from dart_streams.curation.reducer import Agent, InputRecord, advance
from tests import events
from tests.unit.curation.test_feedback import ON, Reader, ended, said
from topics.curated import CuratedGroup
from topics.rollout_orders import PersonLease
from topics.trajectories import Trajectory

LEASE = PersonLease(person="person-1", lease_ms=2500)
CREDIT = {"feedback": {"enabled": True, "credit_taken_over": True}}
TAKEN = {"person_steps": [1, 2], "take_overs": ["f0"]}
SOLVED = {"reward": 1.0, "outcome": "success"}


def agent_named(name: str, tables: dict[str, Any] | None = None) -> Agent:
    """Return an agent of a run that takes feedback."""
    config = parse(ON | {"curation": {"pool": {"enabled": True}}} | (tables or {}))
    return next(agent for agent in bind_agents(config, task_set(1)) if agent.name == name)


def decided(agent: Agent, rollouts: list[Trajectory]) -> list[Any]:
    """Return the events that an agent decides on while these rollouts end."""
    state, found = agent.state(), []
    for offset, rollout in enumerate(rollouts):
        result = advance(agent, state, InputRecord("trajectories", 0, offset, rollout))
        state = result.state
        found += [decision.event for decision in result.decisions]
    return found


def rollout(sample: int, reward: float, size: int = 4, **fields: Any) -> Trajectory:
    known = {
        "group_id": "g000000",
        "group_size": size,
        "order_id": f"g000000/{sample}/0",
        "outcome": "success" if reward == 1.0 else "failure",
        "reward": reward,
        "steps": 3,
        "step_entropies": [0.5, 0.0, 0.0],
        "task_id": "simulated/grid#0",
    }
    return events.trajectory(f"t{sample}", **known | fields)


def test_only_with_credit_a_taken_over_rollout_counts_by_its_own_steps():
    agent = agent_named("groups")
    [group] = decided(agent, [rollout(0, 1.0, **TAKEN), rollout(1, 0.0), rollout(2, 1.0), rollout(3, 0.5)])
    assert [member.trajectory_id for member in group.members] == ["t1", "t2", "t3"]
    failed = [rollout(sample, float(sample == 0), **(TAKEN if sample == 0 else {})) for sample in range(4)]
    assert decided(agent, failed) == [], "its success lifts no failures of others"
    agent = agent_named("groups", CREDIT)
    [group] = decided(agent, [rollout(0, 1.0, **TAKEN), *(rollout(sample, 0.0) for sample in (1, 2, 3))])
    first = group.members[0]
    assert (first.trajectory_id, first.source, first.selected) == ("t0", "online", [0])


@pytest.mark.parametrize("tables", [{}, CREDIT])
def test_difficulty_and_length_do_not_count_what_a_person_solved(tables):
    agent = agent_named("difficulty", tables)
    *_, last = decided(agent, [rollout(0, 0.0), rollout(1, 1.0, **TAKEN)])
    assert (last.attempts, last.success_rate, last.longest_success) == (1, 0.0, None)
    assert last.cause.guided, "dispatch does not count it either"


def test_dispatch_counts_no_success_of_a_person():
    circle = Circle(parse(ON), task_set(1), Odds(), 3)
    circle.share = 1.0
    circle.play_rounds(24)
    assert len(circle.logs["trajectories"]) == 24
    assert [task.finishes for task in circle.states["dispatch"].tasks.values()] == [[]]
    assert all(written.event.success_rate is None for written in circle.logs["task-difficulty"])


def test_a_success_is_imitated_in_the_persons_steps_in_any_order():
    reader = Reader()
    assert reader.read(said(kind="take-over", lease=LEASE)) == []
    [group] = reader.read(ended(**SOLVED, **TAKEN))
    [member] = group.members
    assert (group.group_id, group.feedback, group.is_supervised) == ("take-over-t", ["f0"], True)
    assert (member.selected, member.advantage, member.version_min) == ([1, 2], 1.0, None)
    assert reader.read(ended(**SOLVED, **TAKEN)) == [], "once"
    assert (reader.state.counts.take_overs, reader.state.counts.shown) == (1, 1)
    reader = Reader()
    [group] = reader.read(ended(**SOLVED, **TAKEN))
    assert group.feedback == ["f0"]
    assert reader.read(said(kind="take-over", lease=LEASE)) == []


@pytest.mark.parametrize(
    "fields",
    [
        {**TAKEN},
        {**SOLVED},
        {**TAKEN, **SOLVED, "purpose": "eval"},
        {**TAKEN, "reward": 0.9},
        {**TAKEN, "reward": None, "outcome": "policy_error"},
    ],
    ids=["failed", "the policy alone", "evaluation", "partial", "fault"],
)
def test_nothing_else_is_imitated(fields):
    assert Reader().read(ended(**fields)) == []


@pytest.mark.parametrize(
    ("credit", "judgement", "fields", "selected"),
    [
        (False, "good", {}, [1, 2]),
        (True, "good", {}, [0, 1, 2]),
        (False, "bad", SOLVED, []),
        (True, "bad", SOLVED, [0]),
    ],
)
def test_a_judgement_credits_the_policys_steps_only_with_the_key(credit, judgement, fields, selected):
    reader = Reader(credit_taken_over=credit)
    reader.read(ended(**TAKEN, **fields))
    [group] = reader.read(said(1, judgement=judgement))
    assert group.members[0].selected == selected
    assert group.is_supervised == (judgement == "good")


def test_a_take_over_without_a_lease_is_refused():
    agent = agent_named("feedback")
    result = advance(agent, agent.state(), InputRecord("feedback", 0, 0, said(kind="take-over")))
    assert "needs the lease" in str(result)


MIXED = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sets(st.integers(0, 2))), min_size=2, max_size=6)


@given(MIXED, st.booleans())
def test_no_group_of_rollouts_ever_selects_a_persons_step(drawn, credit: bool):
    """Whatever the rewards, and whoever acted where: what has no log-probabilities is in no ratio."""
    rollouts = [
        rollout(
            sample,
            reward,
            len(drawn),
            person_steps=sorted(taken),
            take_overs=["f0"] if taken else [],
            untrainable="every action is a person's" if len(taken) == 3 else "",
        )
        for sample, (reward, taken) in enumerate(drawn)
    ]
    person = {one.trajectory_id: set(one.person_steps) for one in rollouts}
    tables = CREDIT if credit else {}
    for group in decided(agent_named("groups", tables), rollouts):
        assert isinstance(group, CuratedGroup)
        for member in group.members:
            assert not person[member.trajectory_id] & set(member.selected)
            assert credit or not person[member.trajectory_id]
    shown = decided(agent_named("feedback", tables), rollouts)
    assert {group.members[0].trajectory_id: set(group.members[0].selected) for group in shown} == {
        name: steps for name, steps in person.items() if steps and rollouts[int(name[1:])].reward == 1.0
    }
    rates = [event.attempts for event in decided(agent_named("difficulty", tables), rollouts)]
    assert rates[-1] == sum(not steps for steps in person.values())


class Circle(bundles.LoggingCircle):
    """People take over a share of the rollouts, each at a step of its own."""

    share = 0.3

    def choose(self, waiting: list[Subscription]) -> Subscription:
        return waiting[0]

    def end_one(self, index: int | None = None) -> None:
        order, version = self.running.pop(self.random.randrange(len(self.running)))
        ended = play(order, version, self.odds, self.seed)
        if stateless_random.share("taken", order.order_id) < self.share:
            first = stateless_random.number("first", order.order_id) % ended.steps
            steps = list(range(first, ended.steps))
            take_over = f"f-{order.order_id}"
            ended = msgspec.structs.replace(ended, person_steps=steps, take_overs=[take_over])
            if first == 0:
                ended = msgspec.structs.replace(ended, untrainable="every action is a person's")
            given = {"trajectory_id": ended.trajectory_id, "task_id": ended.task_id, "feedback_id": take_over}
            self.publish("feedback", take_over, said(kind="take-over", lease=LEASE, **given))
        self.publish("trajectories", ended.trajectory_id, ended)


@pytest.mark.parametrize("tables", [{}, CREDIT], ids=["not credited", "credited"])
def test_a_run_with_take_overs_replays_equal(tables, tmp_path):
    config = parse(ON | tables)
    circle = Circle(config, task_set(3), Odds(faults=0.05, lift=0.01), 3).play_rounds(120)
    made = [written.event for written in circle.logs["curated"]]
    person = {written.event.trajectory_id: set(written.event.person_steps) for written in circle.logs["trajectories"]}
    shown = [group for group in made if group.feedback]
    rollouts = [member for group in made if not group.feedback for member in group.members]
    assert len(shown) > 5 and len(rollouts) > 5
    assert all(set(group.members[0].selected) == person[group.members[0].trajectory_id] for group in shown)
    assert not any(person[member.trajectory_id] & set(member.selected) for member in rollouts)
    assert any(person[member.trajectory_id] for member in rollouts) == bool(tables)
    assert circle.states["dispatch"].curated == len(made) - len(shown), "dispatch counts only groups of rollouts"
    path = tmp_path / "run.dart"
    bundles.write(path, config, circle.tasks, circle)
    again = replay(Bundle(path))
    assert again.equal
    assert {count.agent: count.bytes_compared > 0 for count in again.agents}["feedback"]
