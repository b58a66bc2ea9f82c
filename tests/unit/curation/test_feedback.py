"""Feedback of people: which groups the agent makes of it, and that a run without any is unchanged."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import bundle as bundles
from benchmarks.curation_world import Odds, task_set
from console.bundles.replay import replay
from console.runs.bundle import Bundle
from dart_streams.config import parse
from dart_streams.curation import feedback
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.feedback import FeedbackSettings, FeedbackState
from dart_streams.curation.in_memory import Subscription
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import Agent, Decision, InputRecord, InvalidEvent, RefusedInput, advance
from tests import events
from topics.curated import CuratedGroup
from topics.feedback import Feedback
from topics.trajectories import Trajectory

ON = {"env": {"backend": "simulated", "slots": 4}, "feedback": {"enabled": True}}
CLICK = "click(start_box='(3,4)')"


def said(number: int = 0, **fields: Any) -> Feedback:
    given = {"feedback_id": f"f{number}", "task_id": "t/a#1", "author": "ann", "at_ms": number, "trajectory_id": "t"}
    return Feedback(**given | {"kind": "judgement" if "judgement" in fields else "correction"} | fields)


def ended(name: str = "t", **fields: Any) -> Trajectory:
    given = {"reward": 0.0, "outcome": "failure", "steps": 3, "version_min": 5, "version_max": 5, "task_id": "t/a#1"}
    return events.trajectory(name, **given | fields)


class Reader:
    """The agent with its state, and the offset of the next record of each topic."""

    def __init__(self, **tables: Any) -> None:
        config = parse(ON | {"feedback": {"enabled": True, **tables}})
        self.settings, self.rules = FeedbackSettings.of(config), bind_rules(config)
        self.state = FeedbackState(newest_version=5)
        self.offsets = {Feedback: 0, Trajectory: 0}
        self.refusals: list[RefusedInput] = []

    def read(self, event: Any, at_ms: int = 0) -> list[CuratedGroup]:
        topic, offset = ("feedback" if isinstance(event, Feedback) else "trajectories"), self.offsets[type(event)]
        self.offsets[type(event)] += 1
        record = InputRecord(topic, 0, offset, event, at_ms=at_ms)
        self.state, effects = feedback.apply(self.state, record, self.settings, self.rules)
        self.refusals += [effect for effect in effects if isinstance(effect, RefusedInput)]
        return [effect.event for effect in effects if isinstance(effect, Decision)]


def test_a_correction_is_one_supervised_step_with_the_persons_action():
    reader = Reader()
    assert reader.read(ended()) == []
    [group] = reader.read(said(step=1, action=CLICK))
    [member] = group.members
    assert (member.trajectory_id, member.selected, member.corrections) == ("t", [1], [CLICK])
    assert (member.source, member.advantage, group.feedback) == ("pool", 1.0, ["f0"])
    assert group.is_supervised and group.task_id == "t/a#1"
    assert reader.read(said(step=1, action=CLICK)) == [], "it is given once, however often it arrives"


@pytest.mark.parametrize(
    ("reward", "judgement", "advantage", "source"),
    [
        (0.0, "good", 1.0, "pool"),
        (0.0, "partial", 0.5, "online"),
        (1.0, "partial", -0.5, "online"),
        (1.0, "bad", -1.0, "online"),
        (None, "good", 1.0, "pool"),
    ],
)
def test_a_judgement_trains_the_difference_to_the_evaluator(reward, judgement, advantage, source):
    reader = Reader()
    outcome = "env_error" if reward is None else "success" if reward else "failure"
    reader.read(ended(reward=reward, outcome=outcome, recorded_steps=[0]))
    [group] = reader.read(said(judgement=judgement))
    [member] = group.members
    assert (member.advantage, member.source, member.selected) == (advantage, source, [1, 2])
    assert member.version_min == (5 if source == "online" else None)
    assert group.is_supervised == (source == "pool")
    assert reader.read(said(1, judgement=judgement)) == [], "a person who agrees adds nothing"


def test_a_person_who_changes_the_mind_trains_the_difference_to_before():
    reader = Reader()
    reader.read(ended())
    reader.read(said(0, judgement="good"))
    [group] = reader.read(said(1, judgement="bad"))
    assert (group.members[0].advantage, group.members[0].reward) == (-1.0, 0.0)


def test_a_judgement_of_stale_tokens_only_ends_their_imitation():
    reader = Reader()
    reader.read(ended("t", reward=1.0, outcome="success"))
    for name in ("newer", "new"):
        reader.read(ended(name, version_min=8, version_max=8))
    [group] = reader.read(said(judgement="bad"))
    assert (group.members[0].selected, group.members[0].version_min, group.is_supervised) == ([], None, False)
    assert reader.state.counts.stale == 1


def test_judgements_beside_the_evaluators_reward_and_notes_train_nothing():
    reader = Reader(reward="environment")
    reader.read(ended())
    assert reader.read(said(0, judgement="good")) == []
    assert len(reader.read(said(1, step=0, action=CLICK))) == 1
    reader = Reader()
    assert reader.read(said(kind="note", note="cut", trajectory_id="")) == []
    assert reader.state.counts.notes == 1


def test_feedback_on_an_episode_under_way_waits_for_its_end():
    reader = Reader()
    assert reader.read(said(0, step=0, action=CLICK)) == []
    assert reader.read(said(1, judgement="good")) == []
    assert reader.read(said(2, step=9, action=CLICK)) == []
    groups = reader.read(ended())
    assert [group.feedback for group in groups] == [["f0"], ["f1"]]
    assert reader.state.counts.refused == 1 and not reader.state.waiting
    assert [(refusal.source.offset, "has 3 actions" in refusal.reason) for refusal in reader.refusals] == [(2, True)]
    assert reader.read(ended()) == []


def test_waiting_feedback_is_bounded_and_forgotten_ones_are_counted(monkeypatch):
    monkeypatch.setattr(feedback, "MOST_WAITING", 3)
    reader = Reader()
    for number, name in enumerate(["lost", "part", "part", "kept", "kept"]):
        reader.read(said(number, judgement="good", trajectory_id=name))
    assert reader.state.counts.forgotten == 2
    groups = [[group.feedback for group in reader.read(ended(name))] for name in ("lost", "part", "kept")]
    assert groups == [[], [["f2"]], [["f3"]]]
    assert reader.state.counts.agreed == 1
    reader = Reader()
    for number in range(9):
        reader.read(said(number, judgement="good"))
    assert sum(map(len, reader.state.waiting.values())) == 3
    assert reader.state.counts.forgotten == len(reader.refusals) == 6


def test_feedback_ends_where_its_rollout_ended_long_ago_or_never_does(monkeypatch):
    """The first is refused at once, the second after an hour in the time of the records."""
    monkeypatch.setattr(feedback, "MOST_ROLLOUTS", 2)
    reader = Reader()
    for name in "abc":
        reader.read(ended(name))
    with pytest.raises(InvalidEvent, match="2 rollouts have ended after trajectory a"):
        reader.read(said(0, step=0, action=CLICK, trajectory_id="a"))
    assert reader.read(said(1, step=0, action=CLICK, trajectory_id="c"))
    reader.read(said(2, step=0, action=CLICK, trajectory_id="never"), at_ms=1000)
    reader.read(ended("d"), at_ms=3_601_000)
    assert "never" in reader.state.waiting
    reader.read(ended("e"), at_ms=3_601_001)
    [refusal] = reader.refusals
    assert (refusal.source.topic, refusal.source.offset) == ("feedback", 2) and "within an hour" in refusal.reason
    assert (reader.state.waiting, reader.state.arrived, reader.state.counts.forgotten) == ({}, {}, 2)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (said(step=3, action=CLICK), "has 3 actions"),
        (said(step=0, action="push(it)"), "can't be read"),
        (said(action=CLICK), "needs the step"),
        (said(kind="judgement"), "good, partial or bad"),
        (said(kind="note"), "needs a text"),
        (said(judgement="bad", trajectory_id=""), "needs a trajectory_id"),
        (said(judgement="bad", trajectory_id="held-out"), "purpose eval"),
    ],
)
def test_feedback_that_can_not_be_trained_on_is_refused(event: Feedback, reason: str):
    reader = Reader()
    reader.read(ended())
    reader.read(ended("held-out", purpose="eval"))
    with pytest.raises(InvalidEvent, match=reason):
        reader.read(event)


def agent_of(tables: dict[str, Any]) -> list[Agent]:
    return list(bind_agents(parse(tables), task_set(1)))


def test_agents_are_as_ever_without_the_setting():
    off, on = agent_of(ON | {"feedback": {}}), agent_of(ON)
    assert [agent.name for agent in off] == ["difficulty", "budget", "groups", "dispatch"]
    assert [agent.name for agent in on] == ["difficulty", "budget", "groups", "feedback", "dispatch"]


class InOrder(bundles.LoggingCircle):
    """Agents read in a fixed order, so that one more of them draws no random number."""

    def choose(self, waiting: list[Subscription]) -> Subscription:
        return waiting[0]


def circle_of(tables: dict[str, Any]) -> InOrder:
    return InOrder(parse(tables), task_set(3), Odds(faults=0.05, lift=0.01), 3)


def test_a_run_that_nobody_says_anything_of_is_unchanged():
    off, on = circle_of(ON | {"feedback": {}}).play_rounds(150), circle_of(ON).play_rounds(150)
    assert len(off.logs["curated"]) > 5
    on.logs["curation-log"].records = [log for log in on.logs["curation-log"].records if log.event.agent != "feedback"]
    assert off.logs == on.logs
    assert {name: off.states[name] for name in off.agents} == {name: on.states[name] for name in off.agents}


def test_a_run_with_feedback_goes_on_as_ever_and_replays_equal(tmp_path):
    circle = circle_of(ON).play_rounds(80)
    before = circle.states["dispatch"].curated
    played = [written.event for written in circle.logs["trajectories"] if written.event.purpose == "train"]
    for number, trajectory in enumerate(played[-20:]):
        given = {"trajectory_id": trajectory.trajectory_id, "task_id": trajectory.task_id}
        circle.publish("feedback", f"f{number}", said(2 * number, judgement="good", **given))
        circle.publish("feedback", f"g{number}", said(2 * number + 1, step=0, action=CLICK, **given))
    circle.settle()
    made = [written.event for written in circle.logs["curated"] if written.event.feedback]
    assert sum(bool(group.members[0].corrections) for group in made) == 20
    assert circle.states["dispatch"].curated == before, "dispatch counts only groups of rollouts"
    circle.play_rounds(40)
    path = tmp_path / "run.dart"
    bundles.write(path, parse(ON), circle.tasks, circle)
    again = replay(Bundle(path))
    assert again.equal
    assert {count.agent: count.bytes_compared > 0 for count in again.agents}["feedback"]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["good", "partial", "bad", "end"])), max_size=24))
def test_the_reward_that_counts_is_the_last_judgement_in_any_order(steps: list[tuple[int, str]]):
    """Records repeat and come in any order; advantages add up to the last judgement less the evaluator's reward."""
    [agent] = [agent for agent in agent_of(ON) if agent.name == "feedback"]
    state, total, last, over = agent.state(), dict.fromkeys("0123", 0.0), dict[str, float](), set[str]()
    for offset, (name, what) in enumerate(steps):
        if what == "end":
            over.add(str(name))
            record = InputRecord("trajectories", 0, offset, ended(str(name)))
        else:
            last[str(name)] = feedback.REWARDS[what]  # type: ignore[index]
            record = InputRecord("feedback", 0, offset, said(offset, judgement=what, trajectory_id=str(name)))
        for _ in range(2):
            result = advance(agent, state, record)
            state = result.state
            for decision in result.decisions:
                [member] = decision.event.members
                known = 0.0 if not decision.event.is_supervised else member.reward - total[member.trajectory_id]
                total[member.trajectory_id] += known or member.advantage
    assert total == {name: last.get(name, 0.0) if name in over else 0.0 for name in "0123"}
