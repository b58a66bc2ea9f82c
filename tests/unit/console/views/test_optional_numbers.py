"""Rounding of a report's figures."""

from console.views.optional_numbers import mean_and_max


def test_small_figures_are_not_rounded_to_zero():
    assert mean_and_max([4e-7, 2e-7]) == {"mean": 3e-7, "max": 4e-7}
    assert mean_and_max([0.123456, 1234.56]) == {"mean": 617.3, "max": 1235.0}
    assert mean_and_max([]) == {"mean": None, "max": None}
