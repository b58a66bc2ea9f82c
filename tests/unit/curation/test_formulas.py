"""The paper's formulas with its literal values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.curation.advantages import reward_statistics, step_level_advantages
from dart_streams.curation.budget import rollouts_for
from dart_streams.curation.groups import high_entropy_steps
from dart_streams.portable_math import interpolate_quantile


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


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50)), min_size=2, max_size=16))
def test_advantages_sum_to_zero_over_the_steps(members):
    rewards, steps = [r for r, _ in members], [n for _, n in members]
    advantages = step_level_advantages(rewards, steps)
    _, std = reward_statistics(rewards, steps)
    total = sum(a * n for a, n in zip(advantages, steps, strict=True))
    assert total == pytest.approx(0.0, abs=1e-9 * (1 + sum(steps)) / (std + 1e-6))


def test_the_four_fifths_of_highest_entropy_are_kept_and_equal_ones_all():
    entropies = [step / 10 for step in range(1, 11)]
    assert interpolate_quantile(entropies, 0.2) == pytest.approx(0.28)
    assert high_entropy_steps([entropies]) == [[2, 3, 4, 5, 6, 7, 8, 9]]
    assert high_entropy_steps([[0.5, 0.5], [], [0.5]]) == [[0, 1], [], [0]]
    assert high_entropy_steps([[], []]) == [[], []]
