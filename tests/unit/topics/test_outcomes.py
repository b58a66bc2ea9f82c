"""One definition of success."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from topics.outcomes import SUCCESS, is_success, reconcile_outcome
from topics.transitions import FAULTS, REWARDED
from topics.values import OutcomeKind

KINDS = get_args(OutcomeKind)


@given(st.sampled_from(sorted(REWARDED)), st.floats(0, 1))
def test_an_outcome_is_a_success_exactly_if_its_reward_is_one(kind, reward):
    result = reconcile_outcome(kind, reward)
    assert (result == "success") == is_success(reward)
    assert reconcile_outcome(result, reward) == result


def test_faults_and_partial_credit_keep_their_outcome():
    assert all(reconcile_outcome(kind, 1.0) == kind for kind in KINDS if kind in FAULTS)
    assert reconcile_outcome("truncated", SUCCESS - 0.01) == "truncated"
    assert reconcile_outcome("failure", 0.0) == "failure"
