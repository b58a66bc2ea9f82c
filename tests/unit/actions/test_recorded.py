"""Whether an action is the recorded one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.actions import CallUser, Click, Drag, Finished, Hotkey, Move, Scroll, Type, Wait
from dart_streams.actions.recorded import are_same_actions, is_same_action


@pytest.mark.parametrize(
    ("action", "recorded", "same"),
    [
        (Click(10, 20), Click(10, 20), True),
        (Click(15, 15), Click(10, 20), True),
        (Click(16, 20), Click(10, 20), False),
        (Click(10, 26), Click(10, 20), False),
        (Click(10, 20, "right"), Click(10, 20), False),
        (Click(10, 20, count=2), Click(10, 20), False),
        (Move(10, 20), Click(10, 20), False),
        (Drag(1, 1, 50, 50), Drag(2, 2, 53, 53), True),
        (Drag(1, 1, 50, 50), Drag(1, 1, 56, 50), False),
        (Scroll(1, 1, "up"), Scroll(3, 3, "up"), True),
        (Scroll(1, 1, "up"), Scroll(1, 1, "down"), False),
        (Type("Bob"), Type("Bob"), True),
        (Type("bob"), Type("Bob"), False),
        (Hotkey(("ctrl", "a")), Hotkey(("ctrl", "c")), False),
        (Finished("all done"), Finished(), True),
        (Finished(), CallUser(), False),
        (Wait(), Wait(), True),
    ],
)
def test_an_action_is_the_recorded_one_within_a_box_around_its_place(action, recorded, same):
    """Recorded at (10, 20) with a bound of 5 pixels, the box is 5 to 15 by 15 to 25."""
    assert is_same_action(action, recorded, 5) == same


def test_the_actions_of_an_answer_are_compared_in_order():
    assert are_same_actions([Click(1, 1), Type("a")], [Click(2, 2), Type("a")], 5)
    assert not are_same_actions([Type("a"), Click(1, 1)], [Click(2, 2), Type("a")], 5)
    assert not are_same_actions([Click(1, 1)], [Click(1, 1), Type("a")], 5)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 30))
def test_the_bound_holds_for_each_axis(x, y, other_x, other_y, bound):
    inside = max(abs(x - other_x), abs(y - other_y)) <= bound
    assert is_same_action(Click(x, y), Click(other_x, other_y), bound) == inside
