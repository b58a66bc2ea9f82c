"""The action grammar: what is printed is read back, UI-TARS's variants are read, everything else is refused."""

from typing import get_args

import pytest
from hypothesis import example, find, given
from hypothesis import strategies as st

from dart_streams import actions
from dart_streams.actions import (
    Action,
    Call,
    CallUser,
    Click,
    Drag,
    Finished,
    Hotkey,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Scroll,
    Type,
    Unparsable,
    Wait,
    keys,
)

pixel = st.integers(0, 9999)
button = st.sampled_from(["left", "middle", "right"])
key = st.sampled_from(["ctrl", "shift", "a", "'", "\\", "é", "+"])
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
every_action = st.one_of(
    st.builds(Click, pixel, pixel, button, st.integers(1, 3)),
    st.builds(Move, pixel, pixel),
    st.builds(Drag, pixel, pixel, pixel, pixel, button),
    st.builds(MouseDown, pixel, pixel, button),
    st.builds(MouseUp, pixel, pixel, button),
    st.builds(Scroll, pixel, pixel, st.sampled_from(["up", "down", "left", "right"]), st.none() | st.integers(1, 100)),
    st.builds(Hotkey, st.lists(key, min_size=1).map(tuple)),
    st.builds(KeyDown, key),
    st.builds(KeyUp, key),
    st.builds(Type, st.text(max_size=200)),
    st.builds(Wait),
    st.builds(Finished, st.text(max_size=200)),
    st.builds(CallUser),
    st.builds(Call, st.just("files.read"), st.dictionaries(st.text(max_size=5), json_value, max_size=3)),
)


def test_every_kind_of_action_is_drawn():
    drawn = {type(find(every_action, lambda action, kind=kind: isinstance(action, kind))) for kind in get_args(Action)}
    assert drawn == set(get_args(Action))


@given(every_action)
def test_what_is_printed_is_read_back(action):
    assert actions.parse(actions.format(action)) == action


blanks_and_digits = st.text(st.characters(categories=["Nd", "Zs", "Zl", "Zp", "Cc"]), max_size=3)
some_answer = st.one_of(
    st.text(),
    st.text().map("Action: {}".format),
    st.text().map("Action: click({})".format),
    st.tuples(*[blanks_and_digits] * 4).map(lambda parts: "Action: click(start_box='({}1{},{}2{})')".format(*parts)),
)


@given(some_answer)
@example("Action: click(start_box='(\x1d150,20)')")
@example("Action: click(start_box='(\u0661,\u0662)')")
def test_garbage_is_refused_and_nothing_else(answer):
    try:
        actions.parse(answer)
    except Unparsable as error:
        assert str(error)


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("Action: click(start_box='(84,120)')", Click(84, 120)),
        ("Thought: The button.\nAction: click(start_box='(84, 120)')", Click(84, 120)),
        ("Action: click(start_box='<|box_start|>(84,120)<|box_end|>')", Click(84, 120)),
        ("Action: click(start_box='[10, 20, 30, 40]')", Click(20, 30)),
        ('Action: type(content="it\'s")', Type("it's")),
        (r"Action: type(content='it\'s\n')", Type("it's\n")),
        ("Action: hotkey(key='ctrl c')", Hotkey(("ctrl", "c"))),
        ("Action: left_double(start_box='(1,2)')", Click(1, 2, count=2)),
        ("Action: right_single(start_box='(1,2)')", Click(1, 2, "right")),
        ("Action: click(start_box='(1,2)', button='middle', count='3')", Click(1, 2, "middle", 3)),
        ("Action: scroll(start_box='(1,2)', direction='up', amount='5')", Scroll(1, 2, "up", 5)),
        ("Action: press(key='shift')", KeyDown("shift")),
        ("Action: finished()", Finished("")),
        ("Action: wait()", Wait()),
    ],
)
def test_variants_of_ui_tars_are_read(answer, action):
    assert actions.parse(answer) == action


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("click(start_box='(1,2)')", "no line"),
        ("Look!\nAction: wait()", "Thought"),
        ("Action: explode()", "unknown action"),
        ("Action: click()", "takes"),
        ("Action: click(start_box='(1,2)', end_box='(1,2)')", "takes"),
        ("Action: click(start_box='(1)')", "not a box"),
        ("Action: click(start_box='(-1,2)')", "not a box"),
        ("Action: click(start_box='__import__(\"os\")')", "not a box"),
        ("Action: click(start_box='(1,2)' start_box='(1,2)')", "comma"),
        ("Action: click(start_box='(1,2)', start_box='(3,4)')", "given twice"),
        ("Action: click(start_box='(\u0661,2)')", "not a box"),
        ("Action: click(start_box='(1,2)',)", "missing"),
        ("Action: scroll(start_box='(1,2)', direction='inwards')", "direction"),
        ("Action: scroll(start_box='(1,2)', direction='up', amount='101')", "from 1 to 100"),
        ("Action: scroll(start_box='(1,2)', direction='up', amount='\u0661')", "from 1 to 100"),
        ("Action: click(start_box='(1,2)', count='0')", "from 1 to 3"),
        ("Action: click(start_box='(1,2)', button='fourth')", "unknown button"),
        ("Action: left_double(start_box='(1,2)', button='right')", "takes"),
        ("Action: hotkey(key='')", "no key"),
        ("Action: press(key='')", "no key"),
        ("Action: press(key='ctrl a')", "more than one"),
        ("Action: wait()\nwait()", "argument"),
    ],
)
def test_a_refusal_says_what_was_wrong(answer, why):
    with pytest.raises(Unparsable, match=why):
        actions.parse(answer)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (Click(84, 120), "click(start_box='(84,120)')"),
        (Click(1, 2, count=2), "left_double(start_box='(1,2)')"),
        (Click(1, 2, "right", 2), "click(start_box='(1,2)', button='right', count='2')"),
        (Drag(1, 2, 3, 4), "drag(start_box='(1,2)', end_box='(3,4)')"),
        (Scroll(1, 2, "down"), "scroll(start_box='(1,2)', direction='down')"),
        (MouseDown(1, 2, "middle"), "mouse_down(start_box='(1,2)', button='middle')"),
        (KeyUp("ctrl"), "release(key='ctrl')"),
        (Type("it's\n"), r"type(content='it\'s\n')"),
    ],
)
def test_how_actions_are_written(action, text):
    assert actions.call(action) == text


@pytest.mark.parametrize(
    ("name", "key"),
    [("Return", "enter"), ("Page_Down", "pagedown"), ("PgDn", "pagedown"), ("A", "A"), ("F12", "f12"), ("-", "-")],
)
def test_a_key_has_one_name(name, key):
    assert keys.canonical_name(name) == key


def test_names_of_keys_are_stable():
    known = keys.NAMED | set(keys.ALIASES)
    assert {keys.canonical_name(keys.canonical_name(name)) for name in known} == {
        keys.canonical_name(name) for name in known
    }
    assert all(target in keys.NAMED or len(target) == 1 for target in keys.ALIASES.values())
    assert not keys.NAMED & set(keys.ALIASES)
