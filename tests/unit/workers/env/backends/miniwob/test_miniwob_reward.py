"""What a page's raw reward is as a reward."""

import math

import pytest

from dart_streams.config import Miniwob
from topics.outcomes import is_success
from workers.env.backends.miniwob.page import reward_of

ARM, VERTEX = 0.075, math.nan
"""What bisect-angle gives a click on an arm of the angle, at most, and one on its vertex."""
ONE_WRONG = (12 - 2) / 12
"""What a page that counts right answers gives for all but one."""
ORACLE_MIN = 0.966
"""What a page that measures a distance gives its best pixel, at least."""


@pytest.mark.parametrize("raw", [-1.0, -0.2, 0.0, ARM, 0.4, ONE_WRONG, ORACLE_MIN, 1.0])
def test_partial_credit_is_kept_if_asked_for_and_is_no_success(raw):
    solved = raw >= ORACLE_MIN
    assert reward_of(raw, partial_credit=True) == (1.0 if solved else max(raw, 0.0))
    assert reward_of(raw, Miniwob().partial_credit) == float(solved)
    assert is_success(reward_of(raw, partial_credit=True)) == solved


@pytest.mark.parametrize("raw", [VERTEX, math.inf, -math.inf])
def test_what_is_no_number_is_0(raw):
    assert reward_of(raw, partial_credit=True) == reward_of(raw, partial_credit=False) == 0.0
