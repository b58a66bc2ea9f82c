"""Formulas of the curation against their papers, written as loops over trajectories of 0 to 30 steps."""

import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dart_streams.curation import advantages, groups
from dart_streams.curation.budget import length_cap

MEMBERS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(0, 30)), min_size=1, max_size=16)


@given(MEMBERS)
@example([(1.0, 1)])
@example([(1.0, 0), (0.0, 0)])
def test_step_level_advantages_are_those_of_a_list_of_all_steps(members):
    """DART: each step has its trajectory's reward, and mean and deviation are over the list of all of them."""
    rewards, steps = [reward for reward, _ in members], [count for _, count in members]
    every_step = [reward for reward, count in members for _ in range(count)]
    found = advantages.step_level_advantages(rewards, steps)
    mean = statistics.fmean(every_step) if every_step else 0.0
    sigma = statistics.stdev(every_step) if len(every_step) > 1 else 0.0
    assert found == pytest.approx([(reward - mean) / (sigma + 1e-6) for reward in rewards], rel=1e-6, abs=1e-6)


@given(MEMBERS, st.sampled_from([0.0, 0.5, 1.0]))
def test_longer_successes_lose_reward_by_their_excess(members, alpha):
    """AdaGRPO (arXiv 2509.18119): r (1 - alpha (T - T_min) / T) for successes of T steps."""
    rewards, steps = [reward for reward, _ in members], [count for _, count in members]
    lengths = [count for reward, count in members if reward == 1.0]
    expected = []
    for reward, count in members:
        excess = (count - min(lengths)) / count if reward == 1.0 and count else 0.0
        expected.append(reward * (1 - alpha * excess))
    assert advantages.shortest_path(rewards, steps, alpha) == pytest.approx(expected)


@given(MEMBERS, st.sampled_from([0.5, 0.9, 1.0]))
def test_single_step_advantages_compare_trajectories_at_the_same_step(members, discount):
    """UI-S1 (arXiv 2509.11543), with the whole reward at the last step: R_t = discount ** (T - 1 - t) r."""
    rewards, steps = [reward for reward, _ in members], [count for _, count in members]
    found = advantages.single_step_advantages(rewards, steps, discount)
    assert [len(own) for own in found] == steps
    for step in range(max(steps)):
        at_step = [index for index, count in enumerate(steps) if count > step]
        returns = [rewards[index] * discount ** (steps[index] - 1 - step) for index in at_step]
        sigma = statistics.stdev(returns) if len(returns) > 1 else 0.0
        mean = statistics.fmean(returns)
        for index, value in zip(at_step, returns, strict=True):
            assert found[index][step] == pytest.approx((value - mean) / (sigma + 1e-6), rel=1e-5, abs=1e-5)


@given(st.lists(st.lists(st.floats(0, 5), max_size=30), min_size=1, max_size=8), st.integers(0, 10))
def test_kept_steps_are_those_at_or_above_the_quantile_of_the_group(step_entropies, tenths):
    """DART: H_t >= the 1 - keep quantile of the group, by linear interpolation between order statistics."""
    keep = tenths / 10
    found = groups.high_entropy_steps(step_entropies, keep)
    every = sorted(value for own in step_entropies for value in own)
    if not every:
        assert found == [[] for _ in step_entropies]
        return
    place = (1.0 - keep) * (len(every) - 1)
    below = int(place)
    above = min(below + 1, len(every) - 1)
    bound = every[below] + (every[above] - every[below]) * (place - below)
    for own, kept in zip(step_entropies, found, strict=True):
        for index, value in enumerate(own):
            if abs(value - bound) > 1e-9:
                assert (index in kept) == (value > bound)
    assert sum(map(len, found)) >= int(keep * len(every))
    if keep == 1.0:
        assert found == [list(range(len(own))) for own in step_entropies]


@given(st.lists(st.integers(1, 30), max_size=20))
def test_the_length_cap_is_the_longest_success(lengths):
    assert length_cap(lengths, 30) == (sorted(lengths)[-1] if lengths else 30)
