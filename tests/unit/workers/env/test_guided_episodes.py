"""Whole episodes of orders with recorded actions."""

import re

import msgspec
import pytest

from dart_streams.actions import Click, Finished, format
from dart_streams.config.tasks import Task
from dart_streams.episodes import guidance
from dart_streams.episodes.trajectory_summary import summarize
from examples.in_memory_run import PolicyFunction
from tests import events
from tests.unit.workers.env.episodes import TRAINER, StoredLog, runner_of, simulated_config
from topics.observations import Observation
from topics.rollout_orders import Guide
from workers.env.backends.simulated import SimulatedBackend

POINT = re.compile(r"\((\d+),(\d+)\)")
CONFIG = simulated_config()
BESIDE = 60


class Answers:
    """A policy that clicks the box, but for the numbered requests, which it answers otherwise."""

    def __init__(self, others: dict[int, str] | None = None, offset: int = 0) -> None:
        self.others = others or {}
        self.offset = offset
        self.asked: list[int] = []

    def __call__(self, request) -> str:
        self.asked.append(request.step)
        x, y = map(int, POINT.findall(" ".join(turn.text or "" for turn in request.turns))[0])
        return self.others.get(request.step, format(Click(x + self.offset, y)))


async def guided(
    answers: Answers, page: str = "steps-4", recorded: Answers | None = None, **guide
) -> tuple[list[Observation], str]:
    """Record a success, then play an order that it guides; return the guided trajectory, and the recorded one's id."""
    log = StoredLog()
    task = Task(environment="simulated", page=page, seed=3, max_steps=6, split="train")

    async def play(policy: Answers, **fields) -> str:
        before = set(log.observations)
        order = events.rollout_order(task_id=task.task_id, **fields)
        runner = runner_of(CONFIG, SimulatedBackend(CONFIG), log, PolicyFunction(policy, TRAINER))
        await runner.run(order, task, lambda _: None)
        [trajectory_id] = set(log.observations) - before
        return trajectory_id

    source = await play(recorded or Answers())
    played = await play(answers, guide=Guide(trajectory_id=guide.pop("source", source), **guide))
    return log.observations[played], source


def taken_of(observations: list[Observation]) -> list:
    return [observation.taken for observation in observations[1:]]


def recorded_steps(observations: list[Observation]) -> list[int]:
    return summarize(observations).recorded_steps


async def test_a_prefix_is_executed_without_the_policy_and_is_marked():
    answers = Answers()
    observations, source = await guided(answers, mode="prefix", share=0.5)
    assert answers.asked == [2, 3], "the first half of four actions is recorded"
    taken = taken_of(observations)
    assert [action.recorded_from for action in taken] == [source, source, None, None]
    assert [len(action.tokens) for action in taken] == [0, 0, 1, 1]
    assert len({observation.screenshot.sha256 for observation in observations}) == 5, "each click changed the screen"
    trajectory = summarize(observations)
    assert (trajectory.outcome, trajectory.reward, trajectory.steps) == ("success", 1.0, 4)
    assert (trajectory.guided, trajectory.recorded_steps, trajectory.untrainable) == (True, [0, 1], "")


@pytest.mark.parametrize(
    ("offset", "reward", "reason"),
    [(0, 1.0, ""), (10, 1.0, ""), (11, 0.0, guidance.OTHER_ACTION), (BESIDE, 0.0, guidance.OTHER_ACTION)],
)
async def test_a_single_step_has_reward_1_in_the_box_and_0_outside(offset, reward, reason):
    answers = Answers(offset=offset)
    observations, _ = await guided(answers, mode="prefix", share=0.75, single=True, bound=10)
    assert answers.asked == [3], "one step of the policy"
    end = observations[-1].end
    assert (end.kind, end.reward, end.reason) == ("success" if reward else "failure", reward, reason)
    assert observations[-1].screenshot == observations[-2].screenshot, "it is judged, not executed"
    assert recorded_steps(observations) == [0, 1, 2]


async def test_a_single_step_of_another_kind_or_without_an_action_has_reward_0():
    for answer, kind in ((format(Finished()), "failure"), ("What?", "invalid_action")):
        observations, _ = await guided(Answers({0: answer}), mode="prefix", single=True, bound=10)
        assert (observations[-1].end.kind, observations[-1].end.reward) == (kind, 0.0)
        assert recorded_steps(observations) == []


async def test_a_patch_replaces_an_action_that_is_not_the_recorded_one():
    beside = format(Click(0, 0))
    answers = Answers({1: beside})
    observations, source = await guided(answers, mode="patches", patches=1, bound=5)
    assert answers.asked == [0, 1, 2, 3], "the policy is asked at each step"
    taken = taken_of(observations)
    assert [action.recorded_from for action in taken] == [None, source, None, None]
    assert (taken[1].tokens, taken[1].text) == ([], taken[0].text), "the recorded answer, without tokens"
    assert taken[1].request_id == f"{observations[0].trajectory_id}/1/0", "the request of the replaced answer"
    assert (observations[-1].end.kind, recorded_steps(observations)) == ("success", [1])


async def test_an_answer_without_an_action_is_patched_too():
    observations, _ = await guided(Answers({2: "What?"}), mode="patches", patches=1, bound=5)
    assert (observations[-1].end.kind, recorded_steps(observations)) == ("success", [2])


@pytest.mark.parametrize(("patches", "patched", "steps"), [(0, [], 1), (1, [0], 2), (2, [0, 1], 3)])
async def test_after_the_last_patch_the_episode_ends_where_the_policy_leaves(patches, patched, steps):
    observations, _ = await guided(Answers(offset=BESIDE), mode="patches", patches=patches, bound=5)
    end, taken = observations[-1].end, taken_of(observations)
    assert (end.kind, end.reward, end.reason) == ("failure", 0.0, guidance.LEFT_RECORDING)
    assert (len(taken), recorded_steps(observations)) == (steps, patched)
    assert (len(taken[-1].tokens), taken[-1].recorded_from) == (1, None), "its own last answer is recorded"
    assert observations[-1].screenshot == observations[-2].screenshot, "and not executed"


async def test_actions_within_the_bound_are_the_policys_own():
    observations, _ = await guided(Answers(offset=4), mode="patches", patches=1, bound=4)
    assert (observations[-1].end.kind, recorded_steps(observations)) == ("success", [])


async def test_a_recording_with_an_answer_without_actions_is_a_fault():
    observations, _ = await guided(Answers(), recorded=Answers({0: "What?"}), mode="patches")
    assert observations[-1].end.kind == "env_error"
    assert observations[-1].end.reason.startswith("order.guide: trajectory")


async def test_an_order_whose_recording_is_not_stored_is_a_fault():
    observations, _ = await guided(Answers(), mode="prefix", source="lost")
    end = observations[-1].end
    assert (end.kind, end.reward) == ("env_error", None)
    assert end.reason == "order.guide: trajectory lost: no ended trajectory with actions is in the store"


async def test_a_trajectory_of_recorded_steps_alone_is_untrainable():
    observations, _ = await guided(Answers({0: "What?"}), page="box", mode="patches", patches=1)
    assert summarize(observations).untrainable == "every action is a recorded one"


@pytest.mark.parametrize(
    ("share", "length", "prefix"), [(0.0, 4, 0), (0.5, 5, 2), (0.99, 4, 3), (1.0, 4, 3), (1.0, 1, 0)]
)
def test_a_prefix_leaves_at_least_one_action(share, length, prefix):
    assert guidance.prefix_length(Guide(trajectory_id="t", mode="prefix", share=share), length) == prefix
    assert guidance.prefix_length(Guide(trajectory_id="t", mode="patches", share=share), length) == 0


def test_a_recording_is_a_whole_trajectory():
    with pytest.raises(guidance.UnusableRecording):
        guidance.recorded_answers("t", [events.observation(0)])


def test_an_order_without_a_guide_has_the_bytes_of_before():
    assert b"guide" not in msgspec.json.encode(events.rollout_order())
    assert b"recorded" not in msgspec.json.encode(events.executed_action("Action: wait()"))
    assert not {b"guided", b"recorded"} & set(re.findall(rb"\w+", msgspec.json.encode(events.trajectory())))
