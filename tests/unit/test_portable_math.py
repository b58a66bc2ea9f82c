import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.portable_math import interpolate_quantile

values = st.lists(st.floats(-1e6, 1e6), min_size=2).map(sorted)


@given(values)
def test_it_is_the_inclusive_quantile_of_the_standard_library(ordered: list[float]):
    quarters = statistics.quantiles(ordered, n=4, method="inclusive")
    assert [interpolate_quantile(ordered, share) for share in (0.25, 0.5, 0.75)] == pytest.approx(quarters)


@given(values, st.floats(-1, 2))
def test_it_lies_between_the_smallest_and_the_largest(ordered: list[float], share: float):
    assert ordered[0] - 1e-6 <= interpolate_quantile(ordered, share) <= ordered[-1] + 1e-6


def test_the_ends_are_exact_and_a_single_value_is_every_quantile():
    assert [interpolate_quantile([1.0, 5.0], share) for share in (0.0, 1.0)] == [1.0, 5.0]
    assert interpolate_quantile([3.0], 0.7) == 3.0
