"""MobileRL: values of AdaGRPO by hand, and what happens in a circle."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.curation import advantages, task_scheduler
from dart_streams.curation.hooks import Own, TaskFinish, Turn
from dart_streams.curation.task_scheduler import TaskState
from dart_streams.recipes.mobilerl import rules
from tests.unit.curation.test_dispatch import Dispatch
from tests.unit.curation.test_groups import Groups
from tests.unit.recipes.agents import groups_in, played, recipe_config

MEMBERS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(0, 30)), min_size=1, max_size=16)


def test_a_shorter_success_is_worth_more_where_the_length_counts():
    """Of successes in 2 and 4 steps with alpha 0.5 the second is worth 1 - 0.5 x (4 - 2) / 4 = 0.75."""
    agent = Groups({"recipe": "mobilerl"})
    agent.see(0, 1.0, size=3, steps=2)
    agent.see(1, 1.0, size=3, steps=4, step_entropies=[0.1] * 4)
    group = agent.see(2, 0.0, size=3, steps=2)
    mean, std = advantages.reward_statistics([1.0, 0.75, 0.0], [2, 4, 2])
    assert [member.advantage for member in group.members] == pytest.approx(
        [(worth - mean) / (std + 1e-6) for worth in (1.0, 0.75, 0.0)]
    )
    assert [member.reward for member in group.members] == [1.0, 1.0, 0.0]
    assert (group.mean, group.std) == (mean, std)


@pytest.mark.parametrize(("alpha", "kept"), [(0.0, False), (0.5, True)])
def test_successes_of_different_length_teach_only_where_the_length_counts(alpha, kept):
    agent = Groups({"recipe": "mobilerl", "recipes": {"mobilerl": {"shortest_path": alpha}}})
    agent.see(0, 1.0, size=2, steps=2)
    group = agent.see(1, 1.0, size=2, steps=4, step_entropies=[0.1] * 4)
    assert (group is not None) == kept


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.4, 1.0]), st.integers(1, 30)), min_size=1, max_size=9),
    st.floats(0.0, 1.0),
)
def test_the_length_changes_successes_only_and_never_below_nothing(members, alpha):
    rewards, steps = [reward for reward, _ in members], [n for _, n in members]
    worth = rules.shortest_path(rewards, steps, alpha)
    for reward, n, value in zip(rewards, steps, worth, strict=True):
        assert value == reward if reward < 1.0 else 0.0 <= value <= reward
        if reward == 1.0 and n == min(m for r, m in members if r == 1.0):
            assert value == reward


@given(MEMBERS, st.sampled_from([0.0, 0.5, 1.0]))
def test_longer_successes_lose_reward_by_their_excess(members, alpha):
    """AdaGRPO (arXiv 2509.18119): r (1 - alpha (T - T_min) / T) for successes of T steps."""
    rewards, steps = [reward for reward, _ in members], [count for _, count in members]
    lengths = [count for reward, count in members if reward == 1.0]
    expected = []
    for reward, count in members:
        excess = (count - min(lengths)) / count if reward == 1.0 and count else 0.0
        expected.append(reward * (1 - alpha * excess))
    assert rules.shortest_path(rewards, steps, alpha) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("failed", "weight"),
    [(0, 1.0), (1, 1.0), (2, math.exp(-2)), (3, math.exp(-3)), (4, math.exp(-4)), (5, 0.0), (50, 0.0)],
)
def test_the_weight_falls_with_failed_groups_until_the_task_is_left_out(failed, weight):
    assert rules.failure_weight(failed, patience=2, cooldown=3) == weight


def test_a_group_counts_as_failed_at_its_end_and_a_success_begins_anew():
    own = Own(rules.Settings(), rules.FailedGroups())
    turn = Turn("a", TaskState(), 0)

    def finish(group, *successes):
        for index, success in enumerate(successes):
            rules.count_failures(own, TaskFinish("a", group, success, index == len(successes) - 1))

    finish(0, False, False)
    finish(1, False, False)
    assert (own.memory.failed, rules.turn_weight(own, turn)) == ({"a": 2}, math.exp(-2))
    finish(2, True, False)
    assert (own.memory.failed, rules.turn_weight(own, turn)) == ({"a": 0}, 1.0)


def test_longer_successes_are_paid_less_in_a_circle():
    circle = played(recipe_config("mobilerl"))
    lengths = {written.event.trajectory_id: written.event.steps for written in circle.logs["trajectories"]}
    compared = 0
    for group in groups_in(circle):
        won = [m for m in group.members if m.reward == 1.0 and m.source == "online"]
        pairs = [(a, b) for a in won for b in won if lengths[a.trajectory_id] < lengths[b.trajectory_id]]
        assert all(shorter.advantage > longer.advantage for shorter, longer in pairs)
        compared += len(pairs)
    assert compared > 0


def test_a_task_that_keeps_failing_gets_no_more_groups(monkeypatch):
    monkeypatch.setattr(task_scheduler, "PROBE_EVERY", 1000)
    agent = Dispatch(tasks=4, recipe="mobilerl", trainer={"groups_per_step": 99})
    hopeless = "simulated/grid#0"
    groups = agent.play(400, lambda order: order.task_id != hopeless and order.sample % 2)
    assert agent.state.memories["mobilerl"].failed[hopeless] == groups.count(hopeless) == 5
    assert hopeless not in groups[-100:]


def test_groups_go_on_although_every_task_is_left_out():
    agent = Dispatch(tasks=3, recipe="mobilerl", trainer={"groups_per_step": 99})
    assert len(agent.play(90, lambda order: False)) == 90
    assert min(agent.state.memories["mobilerl"].failed.values()) > 5
