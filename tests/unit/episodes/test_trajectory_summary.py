"""Trajectories summed up from their observations."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.episodes.trajectory_summary import Incomplete, broken_trajectory, summarize
from tests import events
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.trajectories import StepAction
from topics.values import BlobRef, Sampling, VersionSpan

ORDER = events.rollout_order("g/0", task_id="simulated/box#3", group_size=8, attempt=1, after_version=2)
SUCCESS = EpisodeEnd(kind="success", reward=1.0)


def answer(entropies=(0.5, 1.5), versions=((3, 0, 2),)) -> ExecutedAction:
    return events.executed_action(
        "Action: wait()",
        action="Action: wait()",
        tokens=[1] * len(entropies),
        logprobs=[-0.5] * len(entropies),
        entropies=list(entropies),
        versions=[VersionSpan(version=v, start=s, end=e) for v, s, e in versions],
    )


def observation(step: int, taken: ExecutedAction | None = None, end: EpisodeEnd | None = None) -> Observation:
    return events.observation(step, order=ORDER, taken=taken, end=end, at_ms=1000 + step)


def test_a_trajectory_summarizes_its_observations():
    trajectory = summarize(
        [
            observation(0),
            observation(1, answer()),
            observation(2, answer(entropies=(2.0,), versions=((3, 0, 1), (4, 1, 2))), SUCCESS),
        ]
    )
    assert msgspec.to_builtins(trajectory) == {
        "trajectory_id": "t",
        "order_id": "g/0",
        "group_id": "g",
        "group_size": 8,
        "attempt": 1,
        "task_id": "simulated/box#3",
        "purpose": "train",
        "outcome": "success",
        "reward": 1.0,
        "steps": 2,
        "step_entropies": [1.0, 2.0],
        "version_min": 3,
        "version_max": 4,
        "started_ms": 1000,
        "finished_ms": 1002,
        "actions": [{"name": "wait"}, {"name": "wait"}],
    }


def test_a_demonstration_has_no_entropies_and_no_versions():
    trajectory = summarize([observation(0), observation(1, answer((), ()), SUCCESS)])
    assert (trajectory.steps, trajectory.step_entropies) == (1, [])
    assert trajectory.version_min is trajectory.version_max is None


@pytest.mark.parametrize(("last", "kind", "reward", "steps"), [(2, "truncated", 0.0, 1), (0, "env_error", None, 0)])
def test_an_end_without_an_answer_is_no_step(last, kind, reward, steps):
    answered = [observation(step, answer() if step else None) for step in range(last)]
    trajectory = summarize([*answered, observation(last, None, EpisodeEnd(kind=kind, reward=reward, reason="why"))])
    assert (trajectory.outcome, trajectory.reward, trajectory.steps) == (kind, reward, steps)
    assert len(trajectory.step_entropies) == steps


def test_a_trajectory_names_the_screen_before_each_action():
    """The last screen is before no action; an action that is not executed leaves its screen."""
    shown = [msgspec.structs.replace(observation(0), screenshot=BlobRef(sha256=letter * 64, size=1)) for letter in "ab"]
    steps = [
        shown[0],
        msgspec.structs.replace(shown[1], step=1, taken=answer()),
        msgspec.structs.replace(observation(2, answer()), step=2),
        observation(3, answer(), SUCCESS),
    ]
    assert summarize(steps).screens == ["a" * 16, "b" * 16, ""]
    assert summarize([observation(0), observation(1, answer(), SUCCESS)]).screens == []
    cut = EpisodeEnd(kind="truncated", reward=0.0)
    assert summarize([*steps[:2], observation(2, None, cut)]).screens == ["a" * 16]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Action: click(start_box='(84,120)')", StepAction(name="click", x=84, y=120)),
        ("Action: drag(start_box='(1,2)', end_box='(3,4)')", StepAction(name="drag", x=1, y=2)),
        ("Action: left_double(start_box='(99999,0)')\n\nwait()", StepAction(name="left_double", x=99999, y=0)),
        ("Action: type(content='click(')", StepAction(name="type")),
        ("no action", StepAction()),
        (None, StepAction()),
    ],
)
def test_a_trajectory_has_the_name_and_place_of_each_answers_first_action(text, action):
    steps = [observation(0), observation(1, msgspec.structs.replace(answer(), action=text), SUCCESS)]
    assert summarize(steps).actions == [action]


def test_the_announced_outcome_agrees_with_the_reward():
    solved = EpisodeEnd(kind="truncated", reward=1.0, reason="step limit")
    assert summarize([observation(0), observation(1, answer(), solved)]).outcome == "success"
    partly = EpisodeEnd(kind="success", reward=0.4)
    assert summarize([observation(0), observation(1, answer(), partly)]).outcome == "failure"


@given(length=st.integers(1, 8), data=st.data())
def test_whatever_step_is_missing_no_trajectory_is_made_up(length, data):
    whole = [observation(0), *(observation(step, answer()) for step in range(1, length))]
    whole.append(observation(length, answer(), SUCCESS))
    gone = data.draw(st.sets(st.integers(0, length), min_size=1))
    with pytest.raises(Incomplete):
        summarize([step for step in whole if step.step not in gone])


def test_a_trajectory_that_has_not_ended_is_none_and_a_broken_one_a_fault():
    with pytest.raises(Incomplete, match="none of them ends"):
        summarize([observation(0), observation(1, answer())])
    trajectory = broken_trajectory(observation(3, answer(), SUCCESS), "step 1 is missing")
    assert (trajectory.outcome, trajectory.reward, trajectory.order_id) == ("env_error", None, "g/0")


@pytest.mark.parametrize(("purpose", "marked"), [("train", True), ("eval", False), ("demonstration", False)])
def test_a_rollout_with_an_answer_without_tokens_is_untrainable(purpose, marked):
    order = msgspec.structs.replace(ORDER, purpose=purpose)
    taken = [answer(), answer(entropies=(), versions=()), answer()]
    steps = [observation(0), observation(1, taken[0]), observation(2, taken[1]), observation(3, taken[2], SUCCESS)]
    trajectory = summarize([msgspec.structs.replace(step, order=order) for step in steps])
    reason = "1 of 3 answers have no tokens with log-probabilities, the first at step 1"
    assert trajectory.untrainable == (reason if marked else "")
    assert (b"untrainable" in msgspec.json.encode(trajectory)) == marked, "records without it are as they were"


def test_tokens_without_a_log_probability_each_are_none_to_train_on():
    half = msgspec.structs.replace(answer(), logprobs=[-0.5])
    assert summarize([observation(0), observation(1, half, SUCCESS)]).untrainable
    assert not summarize([observation(0), observation(1, answer(), SUCCESS)]).untrainable


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.8), Sampling(temperature=0.0)])
def test_a_rollout_from_a_part_of_the_distribution_is_none_to_train_on(sampling):
    """vLLM's log-probabilities are of what top_p leaves: -0.22 nats a token at 0.8, against the trainer's."""
    steps = [observation(0), observation(1, answer(), SUCCESS)]
    for purpose in ("train", "eval"):
        order = msgspec.structs.replace(ORDER, purpose=purpose, sampling=sampling)
        trajectory = summarize([msgspec.structs.replace(step, order=order) for step in steps])
        assert ("a part of the distribution" in trajectory.untrainable) == (purpose == "train")
        assert trajectory.outcome == "success", "it counts for the task's success rate"
