"""Typed actions as input events: each action that the grammar reads has events, whatever the policy wrote."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dart_streams import actions
from workers.env.backends.miniwob.inputs import KEY, NOTHING_HELD, HeldInputs, input_calls, release_calls, split_batches

text = st.text(max_size=8)
pixel = st.integers(0, 99999)
some_answer = st.one_of(
    st.builds("Action: {}(key={})".format, st.sampled_from(["hotkey", "press", "release"]), text.map(actions.quote)),
    st.builds("Action: type(content={})".format, text.map(actions.quote)),
    st.builds(
        "Action: {}(start_box='({},{})')".format,
        st.sampled_from(["click", "left_triple", "right_single", "move", "mouse_down", "mouse_up"]),
        pixel,
        pixel,
    ),
    st.builds("Action: drag(start_box='({},{})', end_box='({},{})')".format, pixel, pixel, pixel, pixel),
)


@given(st.lists(some_answer, max_size=6))
@example(["Action: hotkey(key='ß')"])
@example(["Action: press(key='İ')", "Action: hotkey(key='ctrl İ')"])
def test_whatever_the_grammar_reads_has_events_that_can_be_sent(answers):
    held = NOTHING_HELD
    for answer in answers:
        try:
            action = actions.parse(answer)
        except actions.Unparsable:
            continue
        calls, held = input_calls(action, held)
        assert [call for batch in split_batches(calls) for call in batch] == calls
        assert msgspec.json.decode(msgspec.json.encode(calls)) == [list(call) for call in calls]
    assert len(release_calls(held)) == len(held.buttons) + len(held.keys)


@pytest.mark.parametrize(
    ("key", "code"), [("a", 65), ("7", 55), ("Return", 13), ("ß", 0), ("/", 191), (".", 190), ("F1", 112)]
)
def test_virtual_key_codes(key, code):
    (down, up), _ = input_calls(actions.Hotkey((key,)))
    assert [down[0], up[0]] == [KEY, KEY]
    assert down[1]["windowsVirtualKeyCode"] == up[1]["windowsVirtualKeyCode"] == code


def test_what_is_held_counts_for_the_actions_that_follow():
    calls, held = input_calls(actions.KeyDown("ctrl"))
    assert [call[1]["key"] for call in calls] == ["Control"]
    assert held == HeldInputs(keys=("ctrl",))
    (down, _), held = input_calls(actions.Hotkey(("a",)), held)
    assert (down[1]["modifiers"], down[1]["commands"]) == (2, ["selectAll"])
    calls, held = input_calls(actions.Click(1, 2), held)
    assert [call[1]["modifiers"] for call in calls] == [2, 2, 2]
    _, held = input_calls(actions.MouseDown(1, 2, "right"), held)
    (moving,), held = input_calls(actions.Move(3, 4), held)
    assert moving[1]["button"] == "right"
    assert [call[1]["type"] for call in release_calls(held)] == ["mouseReleased", "keyUp"]
    _, held = input_calls(actions.MouseUp(3, 4, "right"), held)
    _, held = input_calls(actions.KeyUp("Control"), held)
    assert held == NOTHING_HELD
    (plain, *_), _ = input_calls(actions.Click(1, 2), held)
    assert "modifiers" not in plain[1]


def test_a_scroll_turns_the_wheel_by_a_notch_by_default():
    (wheel,), _ = input_calls(actions.Scroll(1, 2, "up"))
    assert (wheel[1]["deltaX"], wheel[1]["deltaY"]) == (0, -100)


def test_a_combination_releases_its_keys_in_reverse_order():
    calls, _ = input_calls(actions.Hotkey(("ctrl", "shift", "z")))
    assert [(call[1]["type"], call[1]["key"], call[1]["modifiers"]) for call in calls] == [
        ("keyDown", "Control", 2),
        ("keyDown", "Shift", 10),
        ("keyDown", "Z", 10),
        ("keyUp", "Z", 10),
        ("keyUp", "Shift", 2),
        ("keyUp", "Control", 0),
    ]
    assert calls[2][1]["commands"] == ["redo"]
