"""Which weights are the newest: duplicates, lower versions and fenced trainers change nothing."""

from hypothesis import given
from hypothesis import strategies as st

from topics.weights import WeightVersion
from workers.rollout.weight_state import WeightState


def announced(version: int, epoch: int = 1, model_id: str = "tiny") -> WeightVersion:
    return WeightVersion(
        model_id=model_id, version=version, uri="", sha256="", train_step=version, epoch=epoch, groups_consumed=0
    )


def newest(*records: WeightVersion) -> WeightState:
    state = WeightState(model_id="tiny")
    for record in records:
        state = state.after(record)
    return state


def test_the_highest_version_is_the_target_in_whatever_order_it_is_read_and_however_often():
    assert newest(announced(0), announced(2), announced(1), announced(2)).target == announced(2)


def test_a_fenced_trainer_is_ignored_even_when_its_version_is_higher():
    assert newest(announced(3, epoch=2), announced(9, epoch=1)).target == announced(3, epoch=2)


def test_a_new_epoch_fences_the_old_one_even_before_it_has_a_newer_version():
    state = newest(announced(7, epoch=1), announced(7, epoch=2), announced(8, epoch=1))
    assert state.target == announced(7, epoch=1)
    assert state.after(announced(8, epoch=2)).target == announced(8, epoch=2)


def test_weights_of_another_model_are_not_for_this_worker():
    assert newest(announced(5, model_id="other")).target is None


@given(st.lists(st.builds(announced, st.integers(0, 6), st.integers(0, 3))))
def test_the_target_and_the_epoch_never_go_back(records):
    state = WeightState(model_id="tiny")
    for record in records:
        after = state.after(record)
        assert after.epoch >= state.epoch
        assert state.target is None or (after.target is not None and after.target.version >= state.target.version)
        state = after
