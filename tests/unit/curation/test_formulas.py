"""The paper's formulas with its literal values."""

from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.curation.advantages import reward_statistics, step_level_advantages
from dart_streams.curation.budget import length_cap, rollouts_for
from dart_streams.curation.groups import high_entropy_steps
from dart_streams.quantiles import interpolate_quantile


@pytest.mark.parametrize(
    ("success_rate", "rollouts"),
    [(0.59, 8), (0.60, 8), (0.65, 6), (0.70, 5), (0.75, 5), (0.80, 4), (0.90, 3), (0.95, 2), (1.0, 2), (None, 8)],
)
def test_the_dynamic_rollout_number_is_the_papers(success_rate, rollouts):
    assert rollouts_for(success_rate) == rollouts


def test_rollout_numbers_equal_the_released_formula():
    for attempts in range(1, 65):
        for successes in range(attempts + 1):
            released = 8 if successes * 10 <= attempts * 6 else max(1, (9 * attempts - 7 * successes) // successes)
            assert rollouts_for(successes / attempts) == min(8, released), (successes, attempts)


@given(st.floats(0, 1), st.integers(1, 64), st.floats(0, 1))
def test_a_rollout_number_is_at_least_one_and_at_most_the_base(success_rate, base, threshold):
    assert 1 <= rollouts_for(success_rate, base, threshold) <= base


@given(st.floats(0, 1), st.floats(0, 1))
def test_an_easier_task_never_gets_more_rollouts(one, other):
    assert rollouts_for(max(one, other)) <= rollouts_for(min(one, other))


def test_advantages_are_over_all_steps_of_the_group():
    rewards, steps = [1.0] * 2 + [0.0] * 6, [10] * 2 + [30] * 6
    mean, std = reward_statistics(rewards, steps)
    assert mean == pytest.approx(0.1)
    assert std == pytest.approx(0.3, abs=0.001)
    advantages = step_level_advantages(rewards, steps)
    assert advantages[:2] == pytest.approx([3.0] * 2, abs=0.01)
    assert advantages[2:] == pytest.approx([-0.3333] * 6, abs=0.001)


def test_advantages_are_not_over_trajectories():
    """Those of the same group would be +1.732 and -0.577."""
    rewards, steps = [1.0] * 2 + [0.0] * 6, [10] * 2 + [30] * 6
    of_trajectories = [(reward - mean(rewards)) / pstdev(rewards) for reward in rewards]
    assert (of_trajectories[0], of_trajectories[7]) == (pytest.approx(1.732, abs=1e-3), pytest.approx(-0.577, abs=1e-3))
    advantages = step_level_advantages(rewards, steps)
    assert advantages[0] > of_trajectories[0] + 1
    assert advantages[7] > of_trajectories[7] + 0.2


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50)), min_size=2, max_size=16))
def test_advantages_sum_to_zero_over_the_steps(members):
    rewards, steps = [r for r, _ in members], [n for _, n in members]
    advantages = step_level_advantages(rewards, steps)
    _, std = reward_statistics(rewards, steps)
    total = sum(a * n for a, n in zip(advantages, steps, strict=True))
    assert total == pytest.approx(0.0, abs=1e-9 * (1 + sum(steps)) / (std + 1e-6))


def test_the_four_fifths_of_highest_entropy_are_kept():
    entropies = [step / 10 for step in range(1, 11)]
    assert interpolate_quantile(entropies, 0.2) == pytest.approx(0.28)
    assert high_entropy_steps([entropies]) == [[2, 3, 4, 5, 6, 7, 8, 9]]


def test_the_quantile_is_of_the_whole_group_not_of_each_trajectory():
    assert high_entropy_steps([[0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8, 0.9, 1.0]]) == [[2, 3, 4], [0, 1, 2, 3, 4]]


def test_steps_of_equal_entropy_are_all_kept():
    assert high_entropy_steps([[0.5, 0.5], [], [0.5]]) == [[0, 1], [], [0]]
    assert high_entropy_steps([[], []]) == [[], []]


@given(st.lists(st.lists(st.floats(0, 10), max_size=20), max_size=8), st.floats(0, 1))
def test_at_least_the_asked_share_of_steps_is_kept(step_entropies, keep):
    kept = sum(map(len, high_entropy_steps(step_entropies, keep)))
    total = sum(map(len, step_entropies))
    assert kept >= min(total, int(keep * total))


def test_the_length_cap_is_the_longest_success_and_the_default_before_one():
    assert length_cap([6, 9], 30) == 9
    assert length_cap([], 30) == 30
