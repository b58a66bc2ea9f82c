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
    expected = [(reward - mean) / (sigma + 1e-6) if count else 0.0 for reward, count in members]
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


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
