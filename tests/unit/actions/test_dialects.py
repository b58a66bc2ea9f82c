"""What all dialects have in common: what is written is read back, and nothing but an action or a refusal comes out."""

import os
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dart_streams.actions import Action, Click, Drag, Finished, Hotkey, Scroll, Type, grammar
from dart_streams.actions.dialects import (
    Computer13,
    Native,
    QwenComputerUse,
    QwenMobileUse,
    UiTars,
    UnsupportedAction,
    View,
)
from dart_streams.actions.grammar import Unparsable
from dart_streams.actions.offered import offer_call
from dart_streams.actions.sequence import format_all, parse_all, pointer_after
from tests.unit.actions.generated_answers import DIALECTS, measure
from tests.unit.actions.test_grammar import every_action

VIEW = View(10_000, 10_000)
"""Whose pixels are all that are drawn."""
OFFERED = (offer_call("files.read", "Return the text of a file.", {"type": "object"}),)
WRITERS = (
    Native(),
    UiTars(),
    UiTars(prompt="box"),
    UiTars(prompt="mobile"),
    QwenComputerUse(),
    QwenMobileUse(),
    Computer13(),
)
EXPRESSIBLE = {Native: 18, UiTars: 18, Computer13: 17, QwenComputerUse: 13, QwenMobileUse: 7}
"""Of the samples below."""
SAMPLES = tuple(
    grammar.parse(f"Action: {call}")
    for call in (
        "click(start_box='(5,6)')",
        "left_double(start_box='(5,6)')",
        "left_triple(start_box='(5,6)')",
        "right_single(start_box='(5,6)')",
        "middle_single(start_box='(5,6)')",
        "move(start_box='(5,6)')",
        "drag(start_box='(1,2)', end_box='(3,4)')",
        "drag(start_box='(1,2)', end_box='(3,4)', button='right')",
        "mouse_down(start_box='(1,2)')",
        "mouse_up(start_box='(1,2)', button='middle')",
        "scroll(start_box='(1,2)', direction='left', amount='7')",
        "hotkey(key='ctrl c')",
        "press(key='shift')",
        "release(key='shift')",
        "type(content='it\\'s')",
        "finished(content='')",
        "call_user()",
        "call(name='files.read', arguments='{\"path\":\"a b\"}')",
    )
)


@pytest.mark.parametrize("dialect", WRITERS, ids=repr)
@given(action=every_action)
def test_what_a_dialect_writes_it_reads_back_without_complaint(dialect, action):
    if isinstance(action, Scroll) and action.amount is None and not isinstance(dialect, Native | UiTars):
        return
    try:
        text = dialect.write(action, VIEW)
    except UnsupportedAction as error:
        assert str(error)
        return
    reading = dialect.read(text, VIEW, OFFERED)
    assert (reading.actions, reading.wrong) == ((action,), ())


@pytest.mark.parametrize("dialect", WRITERS, ids=repr)
def test_a_dialect_can_say_as_many_actions_as_its_words_allow(dialect):
    said = 0
    for action in SAMPLES:
        try:
            dialect.write(action, VIEW)
            said += 1
        except UnsupportedAction:
            pass
    assert said == EXPRESSIBLE[type(dialect)]


@pytest.mark.parametrize("kind", [UiTars, QwenComputerUse, QwenMobileUse, Computer13])
@given(x=st.integers(0, 1931), y=st.integers(0, 1091))
def test_relative_places_come_back_to_within_a_thousandth(kind, x, y):
    view, dialect = View(1932, 1092), kind(coordinates="relative")
    (drag,) = dialect.read(dialect.write(Drag(x, y, y, x // 2), view), view).actions
    assert isinstance(drag, Drag)
    assert abs(drag.x - x) <= 1932 / 1000 + 1
    assert abs(drag.y - y) <= 1092 / 1000 + 1


def test_a_scroll_without_an_amount_is_written_as_osworld_scrolls():
    for dialect in (QwenComputerUse(), Computer13()):
        assert dialect.read(dialect.write(Scroll(1, 2, "down"), VIEW), VIEW).actions == (Scroll(1, 2, "down", 5),)


@given(st.lists(every_action, min_size=1, max_size=4))
def test_canonical_text_of_several_actions_round_trips(actions):
    assert parse_all(format_all(actions)) == tuple(actions)
    assert format_all(actions[:1]) == grammar.format(actions[0])


@example([Type(""), Click(0, 0)], "\n\nThought: x\nAction: ")
@given(
    st.lists(every_action, min_size=1, max_size=4), st.sampled_from(["\n\n", "\n\nThought: x\nAction: ", "\nAction: "])
)
def test_several_actions_of_ui_tars_are_read_whatever_stands_between_them(actions, between):
    answer = "Action: " + between.join(grammar.call(action) for action in actions)
    assert UiTars(several="all").read(answer, VIEW, OFFERED).actions == tuple(actions)


@given(every_action)
def test_the_pointer_is_where_the_action_was_or_stays(action):
    place = pointer_after(action)
    assert (place is None) == (not hasattr(action, "x"))
    if isinstance(action, Drag):
        assert place == (action.to_x, action.to_y)


def test_of_any_answer_comes_an_action_within_the_image_or_the_one_error():
    """A million of them, by ``python -m tests.unit.actions.generated_answers`` or ``DART_ANSWERS=1000000``."""
    count = int(os.environ.get("DART_ANSWERS", "6500"))
    found = measure(count, seed=7)
    assert found["examples"] == []
    assert sum(found["outcomes"].values()) == count
    for dialect in {type(dialect).__name__ for dialect in DIALECTS}:
        read, refused = (found["outcomes"][f"{dialect} {outcome}"] for outcome in ("read", "refused"))
        assert min(read, refused) > 0.05 * (read + refused)
    assert found["slowest_ms"] < 2000


@pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
@given(text=st.text(max_size=60))
def test_a_text_is_typed_as_it_is_whatever_it_looks_like(dialect, text):
    action = Type(text)
    assert dialect.read(dialect.write(action, VIEW), VIEW).actions == (action,)


def test_every_kind_of_action_is_among_the_samples_but_wait():
    assert {type(action).__name__ for action in SAMPLES} | {"Wait"} == {kind.__name__ for kind in get_args(Action)}
    assert {Hotkey, Finished} <= {type(action) for action in SAMPLES}


@given(st.floats(0, 9_999), st.floats(0, 9_999), st.integers(0, 12), st.sampled_from([",", ", ", " ", "", "."]))
@example(0.4583333, 0.7291667, 7, ",")
@example(0, 0.7291, 4, ",")
def test_a_place_is_within_a_pixel_of_the_numbers_that_are_written(x: float, y: float, decimals: int, between: str):
    written = f"{x:.{decimals}f}{between}{y:.{decimals}f}"
    try:
        [action] = UiTars().read(f"Action: click(start_box='({written})')", VIEW).actions
    except Unparsable:
        return
    assert between.strip(" ,") == ""
    assert max(abs(action.x - x), abs(action.y - y)) <= 1
