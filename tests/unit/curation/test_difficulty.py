import msgspec
import pytest

from benchmarks.curation_world import task_set
from dart_streams.config import parse
from dart_streams.curation import difficulty
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.order_tracker import Limits
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import InputRecord, InvalidEvent, advance
from tests import events

LIMITS = Limits(attempts=3, horizon=256)


def trajectory(order_id="g000000/0/0", outcome="success", reward=1.0, **fields):
    group_id, _, attempt = order_id.split("/") if order_id.count("/") == 2 else (order_id, "0", "0")
    known = {
        "trajectory_id": f"t-{order_id}",
        "group_size": 8,
        "steps": 3,
        "step_entropies": [0.1, 0.2, 0.3],
        "task_id": "simulated/grid#0",
    } | fields
    known |= {"order_id": order_id, "group_id": group_id, "attempt": int(attempt), "outcome": outcome, "reward": reward}
    return events.trajectory(**known)


RULES = bind_rules(parse({}))


def after(*trajectories, window=16):
    """Return the last decision's event after these trajectories, None if the last one gave none."""
    state, decisions = difficulty.DifficultyState(), []
    for offset, event in enumerate(trajectories):
        state, decisions = difficulty.apply(state, InputRecord("trajectories", 0, offset, event), window, LIMITS, RULES)
    return decisions[0].event if decisions else None


def test_the_rate_is_over_the_last_window_of_rewarded_finishes():
    result = after(
        *[trajectory(f"g00000{n}/0/0", "success" if n else "failure", float(n > 0)) for n in range(5)], window=4
    )
    assert (result.attempts, result.successes, result.success_rate) == (4, 4.0, 1.0)


def test_the_longest_success_never_shrinks_and_has_no_partial_credit():
    result = after(
        trajectory("g000000/0/0", steps=6),
        trajectory("g000000/1/0", steps=9),
        trajectory("g000000/2/0", "failure", 0.0, steps=20),
        trajectory("g000000/3/0", steps=2),
    )
    assert result.longest_success == 9
    result = after(trajectory("g000000/0/0", "failure", 0.5, steps=7), trajectory("g000000/1/0", steps=2))
    assert result.success_rate == 0.75
    assert result.longest_success == 2


def test_evaluations_and_a_second_finish_of_an_order_are_ignored():
    assert after(trajectory("eval-v0-0001-0", purpose="eval")) is None
    first = trajectory("g000000/0/0", "failure", 0.0)
    assert after(first, trajectory("g000000/0/0", trajectory_id="another")) is None


def test_demonstrations_guided_rollouts_and_faults_are_no_attempts():
    result = after(trajectory("demo-7", purpose="demonstration", steps=4))
    assert (result.attempts, result.success_rate, result.longest_success) == (0, None, None)
    result = after(trajectory("demo-7", purpose="demonstration", steps=4), trajectory("g000000/0/0", steps=3))
    assert result.longest_success == 3, "the oracle's length is not the policy's"
    result = after(trajectory("g000000/0/0", guided=True, recorded_steps=[0], steps=4))
    assert (result.attempts, result.success_rate, result.longest_success) == (0, None, None)
    assert result.cause.guided, "dispatch does not count it either"
    assert b"guided" not in msgspec.json.encode(after(trajectory("g000000/0/0")))
    result = after(trajectory("g000000/0/0"), trajectory("g000000/1/0", "env_error", None))
    assert (result.attempts, result.success_rate) == (1, 1.0)
    assert (result.cause.outcome, result.cause.order_id) == ("env_error", "g000000/1/0")


@pytest.mark.parametrize(("outcome", "next_order"), [("env_error", "g000000/0/1"), ("cancelled", "g000000/0/0")])
def test_the_finish_of_an_order_given_again_counts(outcome, next_order):
    assert after(trajectory("g000000/0/0", outcome, None), trajectory(next_order)).attempts == 1


@pytest.mark.parametrize("bad", [{"reward": None}, {"reward": 1.5}, {"order_id": "mine"}, {"group_size": 0}])
def test_what_cannot_be_right_is_refused_and_changes_nothing(bad):
    agent = bind_agents(parse({}), task_set(1))[0]
    fields = {"order_id": "g000000/0/0", "outcome": "success", "reward": 1.0, **bad}
    step = advance(agent, agent.state(), InputRecord("trajectories", 0, 0, trajectory(**fields)))
    assert step.refused
    assert not step.decisions
    assert step.applied is not None
    assert step.state.tasks == {}


def test_a_refusal_says_what_was_wrong():
    with pytest.raises(InvalidEvent, match="outcome success with reward None"):
        after(trajectory(reward=None))
