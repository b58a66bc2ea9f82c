"""What may follow what: each legal transition, each illegal one, and the fences under any order of delivery."""

from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events import weight_version
from topics import transitions
from topics.transitions import (
    FAULTS,
    MOST_AHEAD,
    ORDER,
    REWARDED,
    WEIGHTS,
    IllegalTransition,
    WeightState,
    advance_stage,
    classify_announcement,
    next_attempt,
    outcome_stage,
)
from topics.values import OutcomeKind
from topics.weights import WeightVersion

OUTCOMES = get_args(OutcomeKind)
TABLES = {"order": ORDER, "weights": WEIGHTS}
STEPS = [(name, *pair) for name, table in TABLES.items() for pair in product(table, repeat=2)]
LEGAL = [(name, before, after) for name, before, after in STEPS if after in TABLES[name][before]]
ILLEGAL = [step for step in STEPS if step not in LEGAL]


@pytest.mark.parametrize(("name", "before", "after"), LEGAL)
def test_a_legal_transition_is_made(name, before, after):
    assert advance_stage(TABLES[name], before, after) == after


@pytest.mark.parametrize(("name", "before", "after"), ILLEGAL)
def test_an_illegal_transition_is_refused_with_the_legal_ones(name, before, after):
    with pytest.raises(IllegalTransition, match=f"^{after} cannot follow {before}, only ") as refused:
        advance_stage(TABLES[name], before, after)
    assert all(stage in str(refused.value) for stage in TABLES[name][before] or ["nothing"])


@pytest.mark.parametrize(
    ("table", "first", "stages"),
    [(ORDER, "ordered", transitions.OrderStage), (WEIGHTS, "announced", transitions.WeightStage)],
)
def test_every_stage_has_its_row_and_can_be_reached(table, first, stages):
    reached, todo = set(), {first}
    while todo:
        reached |= todo
        todo = {after for before in todo for after in table[before]} - reached
    assert reached == set(table) == set(get_args(stages))


def test_only_a_reward_is_ever_trained_on():
    before_training = {"trained"}
    for _ in ORDER:
        before_training |= {before for before, after in ORDER.items() if after & before_training - {"ordered"}}
    assert not before_training & {"faulted", "cancelled", "exhausted", "dropped"}


def test_every_outcome_carries_a_reward_or_is_a_fault_or_cancelled():
    assert REWARDED | FAULTS | {"cancelled"} == set(OUTCOMES)
    assert not REWARDED & FAULTS
    assert {outcome: outcome_stage(outcome) for outcome in OUTCOMES} == {
        **dict.fromkeys(REWARDED, "rewarded"),
        **dict.fromkeys(FAULTS, "faulted"),
        "cancelled": "cancelled",
    }


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_fault_alone_is_ordered_again_until_the_attempts_are_used_up(outcome):
    again = [1, 2] if outcome in FAULTS else [None, None]
    assert [next_attempt(outcome, attempt, 3) for attempt in range(4)] == [*again, None, None]
    assert next_attempt(outcome, 0, 1) is None


@given(st.lists(st.sampled_from(OUTCOMES), max_size=8), st.integers(1, 4))
def test_an_order_keeps_to_its_attempts_whatever_its_outcomes(outcomes, attempts):
    attempt, stage = 0, "ordered"
    for outcome in outcomes:
        stage = advance_stage(ORDER, advance_stage(ORDER, stage, "running"), outcome_stage(outcome))
        if stage == "rewarded":
            break
        retry = attempt if stage == "cancelled" else next_attempt(outcome, attempt, attempts)
        stage = advance_stage(ORDER, stage, "exhausted" if retry is None else "ordered")
        if retry is None:
            break
        attempt = retry
    assert attempt < attempts


RECORDS = st.builds(weight_version, st.integers(0, 6), epoch=st.integers(0, 3), groups_consumed=st.integers(0, 3))


def state_after(*records: WeightVersion) -> WeightState:
    state = WeightState(model_id="tiny")
    for record in records:
        state = state.accept(record)
    return state


@pytest.mark.parametrize(
    ("version", "epoch", "expected"),
    [
        *((5, 2, "repeated"), (5, 3, "repeated"), (6, 2, "published"), (6, 3, "published"), (4, 2, "outdated")),
        *((4, 3, "outdated"), (4, 1, "fenced"), (5, 1, "fenced"), (6, 1, "fenced"), (5 + MOST_AHEAD, 2, "published")),
        *((6 + MOST_AHEAD, 2, "foreign"), (10**9, 2, "foreign"), (6, 2 + MOST_AHEAD, "published")),
        *((6, 3 + MOST_AHEAD, "foreign"), (0, 10**9, "foreign"), (10**9, 1, "fenced")),
    ],
)
def test_what_a_record_is_after_version_5_of_epoch_2(version, epoch, expected):
    assert classify_announcement(2, 5, weight_version(version, epoch=epoch)) == expected


def test_the_first_record_is_published_and_only_older_trainers_are_fenced():
    assert classify_announcement(-1, -1, weight_version(0, epoch=0)) == "published"
    assert [transitions.is_fenced(epoch, 2) for epoch in (1, 2, 3)] == [True, False, False]


@given(st.lists(RECORDS, max_size=8), st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=4))
def test_foreign_records_change_nothing_wherever_they_stand(records, strangers):
    mixed = list(records)
    for place, is_version in strangers:
        mixed.insert(
            min(place, len(mixed)), weight_version(10**9, epoch=1) if is_version else weight_version(1, epoch=10**9)
        )
    assert state_after(*mixed) == state_after(*records)


def test_a_version_as_large_as_the_newest_is_none_of_a_stranger():
    """A run that has counted so far goes on: only the distance counts."""
    state = state_after(weight_version(MOST_AHEAD - 1)).accept(weight_version(2 * MOST_AHEAD - 2))
    assert state.accept(weight_version(2 * MOST_AHEAD - 1)).version == 2 * MOST_AHEAD - 1


@pytest.mark.parametrize(
    ("records", "epoch", "newest"),
    [
        pytest.param([(0, 1), (2, 1), (1, 1), (2, 1)], 1, (2, 1), id="the highest version in any order"),
        pytest.param([(3, 2), (9, 1)], 2, (3, 2), id="a fenced trainer with a higher version"),
        pytest.param([(3, 1), (3, 2), (4, 1)], 2, (3, 2), id="a fenced trainer after the same version"),
        pytest.param([(7, 1), (7, 2), (8, 1), (8, 2)], 2, (8, 2), id="a new epoch before its newer version"),
        pytest.param([(7, 1), (6, 2), (8, 1)], 2, (7, 1), id="a new epoch with an older version"),
    ],
)
def test_the_newest_version_is_the_highest_of_unfenced_trainers(records, epoch, newest):
    state = state_after(*(weight_version(version, epoch=number) for version, number in records))
    assert (state.epoch, state.newest) == (epoch, weight_version(newest[0], epoch=newest[1]))


def test_weights_of_another_model_change_nothing_but_a_repeat_the_groups():
    assert state_after(weight_version(5, epoch=3, model_id="other")) == WeightState(model_id="tiny")
    state = state_after(weight_version(1), weight_version(1, groups_consumed=5))
    assert state.newest == weight_version(1, groups_consumed=5)


@given(st.lists(RECORDS))
def test_the_newest_version_and_the_epoch_never_go_back(records):
    state = WeightState(model_id="tiny")
    for record in records:
        after = state.accept(record)
        assert after.epoch >= state.epoch
        assert after.version >= state.version
        assert (after == state) if not state.admits(record) else (after.epoch == record.epoch)
        state = after


@given(st.lists(RECORDS), st.data())
def test_redelivered_records_change_neither_epoch_nor_version(records, data):
    """At-least-once delivery repeats a stretch of the log from some point on."""
    start = data.draw(st.integers(0, len(records)))
    state, again = state_after(*records), state_after(*records, *records[start:])
    assert (again.epoch, again.version) == (state.epoch, state.version)


@given(st.lists(RECORDS).map(lambda records: sorted(records, key=lambda record: record.epoch)), st.data())
def test_an_epochs_records_have_one_result_in_any_order(records, data):
    """Trainers take over one after the other; within an epoch, the order of delivery does not matter."""
    shuffled = sorted(data.draw(st.permutations(records)), key=lambda record: record.epoch)
    in_order, other = state_after(*records), state_after(*shuffled)
    assert (in_order.epoch, in_order.version) == (other.epoch, other.version)
