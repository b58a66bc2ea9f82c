"""UI-S1: credit of steps by hand, and in a circle."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.recipes.ui_s1 import rules
from tests.unit.curation.test_groups import Groups
from tests.unit.recipes.agents import groups_in, played, recipe_config

MEMBERS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(0, 30)), min_size=1, max_size=16)


def test_a_steps_return_is_credited_against_the_groups_same_steps():
    """With discount 0.5, a success in 1 step is worth 1 at step 0, one in 3 steps 0.25, and a failure nothing."""
    agent = Groups({"recipe": "ui-s1"})
    agent.see(0, 1.0, size=3, steps=1, step_entropies=[0.1])
    agent.see(1, 1.0, size=3, steps=3, step_entropies=[0.1] * 3)
    group = agent.see(2, 0.0, size=3, steps=2)
    mean, std = 1.25 / 3, statistics.stdev([1.0, 0.25, 0.0])
    short, long, failure = group.members
    assert short.step_advantages == pytest.approx([short.advantage + (1.0 - mean) / std], abs=1e-4)
    assert long.step_advantages[0] == pytest.approx(long.advantage + (0.25 - mean) / std, abs=1e-4)
    assert long.step_advantages[1] == pytest.approx(long.advantage + 0.5**0.5, abs=1e-4)
    assert long.step_advantages[2] == long.advantage
    assert failure.step_advantages[1] == pytest.approx(failure.advantage - 0.5**0.5, abs=1e-4)


def test_only_selected_steps_have_an_advantage_of_their_own():
    agent = Groups({"recipe": "ui-s1"}, entropy={"keep": 0.8}, pool={"enabled": True})
    agent.see(0, 1.0, 2, steps=5, step_entropies=[0.1, 0.2, 0.3, 0.4, 0.5])
    group = agent.see(1, 0.0, 2, steps=5, step_entropies=[0.6, 0.7, 0.8, 0.9, 1.0])
    first, second = group.members
    assert (first.selected, len(first.step_advantages), len(second.step_advantages)) == ([2, 3, 4], 3, 5)
    whole = rules.discounted_advantages([1.0, 0.0], [5, 5], 0.5)[0]
    assert first.step_advantages == [first.advantage + whole[step] for step in first.selected]


def test_a_stored_success_is_credited_as_well():
    agent = Groups({"recipe": "ui-s1"}, entropy={"keep": 0.8}, pool={"enabled": True})
    agent.see(0, 1.0, purpose="demonstration", order_id="demo-0", trajectory_id="shown", steps=3, step_entropies=[])
    group = agent.see_all(0.0, 0.0)
    [taken] = [member for member in group.members if member.source == "pool"]
    assert len(taken.step_advantages) == 3


@pytest.mark.parametrize(
    ("weight", "lengths", "kept"), [(1.0, (2, 4), True), (1.0, (2, 2), False), (0.0, (2, 4), False)]
)
def test_equal_successes_have_a_signal_only_where_steps_are_credited(weight, lengths, kept):
    agent = Groups({"recipe": "ui-s1", "recipes": {"ui-s1": {"step_weight": weight}}})
    agent.see(0, 1.0, 2, steps=lengths[0], step_entropies=[0.1] * lengths[0])
    group = agent.see(1, 1.0, 2, steps=lengths[1], step_entropies=[0.1] * lengths[1])
    assert (group is not None) == kept


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.4, 1.0]), st.integers(0, 9)), min_size=1, max_size=8),
    st.floats(0.0, 1.0),
)
def test_step_advantages_are_one_a_step_and_sum_to_nothing_at_each_step(members, discount):
    rewards, steps = [reward for reward, _ in members], [n for _, n in members]
    credited = rules.discounted_advantages(rewards, steps, discount)
    assert [len(own) for own in credited] == steps
    for step in range(max(steps)):
        assert sum(own[step] for own in credited if step < len(own)) == pytest.approx(0.0, abs=1e-6)
    if len(set(rewards)) == 1 and not (any(rewards) and discount != 1.0 and len(set(steps)) > 1):
        assert all(abs(gain) < 1e-6 for own in credited for gain in own)


@given(MEMBERS, st.sampled_from([0.5, 0.9, 1.0]))
def test_single_step_advantages_compare_trajectories_at_the_same_step(members, discount):
    """UI-S1 (arXiv 2509.11543), with the whole reward at the last step: R_t = discount ** (T - 1 - t) r."""
    rewards, steps = [reward for reward, _ in members], [count for _, count in members]
    found = rules.discounted_advantages(rewards, steps, discount)
    assert [len(own) for own in found] == steps
    for step in range(max(steps)):
        at_step = [index for index, count in enumerate(steps) if count > step]
        returns = [rewards[index] * discount ** (steps[index] - 1 - step) for index in at_step]
        sigma = statistics.stdev(returns) if len(returns) > 1 else 0.0
        mean = statistics.fmean(returns)
        for index, value in zip(at_step, returns, strict=True):
            assert found[index][step] == pytest.approx((value - mean) / (sigma + 1e-6), rel=1e-5, abs=1e-5)


def test_steps_of_a_trajectory_are_credited_apart_in_a_circle():
    members = [member for group in groups_in(played(recipe_config("ui-s1"))) for member in group.members]
    assert all(len(member.step_advantages) == len(member.selected) for member in members)
    assert any(len(set(member.step_advantages)) > 1 for member in members)
