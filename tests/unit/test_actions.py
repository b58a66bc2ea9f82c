"""The action grammar: what is printed is read back, UI-TARS's variants are read, everything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams import actions
from dart_streams.actions import (
    CallUser,
    Click,
    DoubleClick,
    Drag,
    Finished,
    Hotkey,
    RightClick,
    Scroll,
    Type,
    Unparsable,
    Wait,
)

pixel = st.integers(0, 9999)
every_action = st.one_of(
    st.builds(Click, pixel, pixel),
    st.builds(DoubleClick, pixel, pixel),
    st.builds(RightClick, pixel, pixel),
    st.builds(Drag, pixel, pixel, pixel, pixel),
    st.builds(Hotkey, st.lists(st.sampled_from(["ctrl", "shift", "a", "'", "\\"]), min_size=1).map(tuple)),
    st.builds(Type, st.text(max_size=200)),
    st.builds(Scroll, pixel, pixel, st.sampled_from(["up", "down", "left", "right"])),
    st.builds(Wait),
    st.builds(Finished, st.text(max_size=200)),
    st.builds(CallUser),
)


@given(every_action)
def test_what_is_printed_is_read_back(action):
    assert actions.parse(actions.format(action)) == action


@given(st.text() | st.text().map(lambda text: f"Action: {text}") | st.text().map(lambda text: f"Action: click({text})"))
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
        ("Action: click(start_box='(1,2)',)", "missing"),
        ("Action: scroll(start_box='(1,2)', direction='inwards')", "direction"),
        ("Action: hotkey(key='')", "no key"),
        ("Action: wait()\nwait()", "argument"),
    ],
)
def test_a_refusal_says_what_was_wrong(answer, why):
    with pytest.raises(Unparsable, match=why):
        actions.parse(answer)
