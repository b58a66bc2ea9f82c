"""What a page's raw reward is as a reward."""

import pytest

from dart_streams.config import Miniwob
from workers.env.miniwob.page import reward_of


@pytest.mark.parametrize(("raw", "reward"), [(-1.0, 0.0), (-0.2, 0.0), (0.0, 0.0), (0.01, 1.0), (0.4, 1.0), (1.0, 1.0)])
def test_any_reward_above_0_is_a_success(raw, reward):
    assert reward_of(raw, Miniwob().partial_credit) == reward


@pytest.mark.parametrize(("raw", "reward"), [(-1.0, 0.0), (0.0, 0.0), (0.01, 0.01), (0.4, 0.4), (1.0, 1.0)])
def test_partial_credit_is_kept_on_request(raw, reward):
    assert reward_of(raw, partial_credit=True) == reward
