"""Actions as touches, keys and texts of a phone."""

import pytest

from dart_phones import gestures
from dart_streams import actions
from dart_streams.actions import keys
from dart_streams.actions.contract import CONTRACT, Received, make_strokes, normalize_inputs
from tests.keyboard import TYPED

NONE = frozenset[str]()


def play_keys(sequence) -> tuple[list[gestures.Event], frozenset[str]]:
    """Return the events of actions in turn, and the modifiers that are held at the end."""
    events, held = [], NONE
    for action in sequence:
        events += gestures.input_events(action, held)
        held = gestures.keys_after(action, held)
    return events, held


@pytest.mark.parametrize(("sequence", "text"), TYPED, ids=range(len(TYPED)))
def test_keys_type_what_they_type_into_a_page(sequence, text):
    events, held = play_keys(sequence)
    assert "".join(event[1] for event in events if event[0] == "text") == text
    assert not held


def touched(sequence) -> list[Received]:
    """Return the touches and keys of actions in the words of their contract."""
    words: list[Received] = []
    for kind, *rest in play_keys(sequence)[0]:
        match kind:
            case "down":
                words.append(["press", "left", *rest, 1])
            case "up":
                words.append(["release", "left", *rest])
            case "text" | "key":
                words += make_strokes(*(rest[0] if kind == "text" else [rest[0].removeprefix("KEYCODE_")]))
            case "move":
                words.append([kind, *rest])
    return normalize_inputs(words)


FINGER = (actions.Click, actions.Drag, actions.Move, actions.MouseDown, actions.MouseUp, actions.Type, actions.Wait)


def of_a_finger(action: actions.Action) -> bool:
    return isinstance(action, FINGER) and getattr(action, "button", "left") == "left"


@pytest.mark.parametrize(("sequence", "wanted"), [line for line in CONTRACT if all(map(of_a_finger, line[0]))], ids=str)
def test_a_finger_does_what_the_contract_of_actions_says(sequence, wanted):
    assert touched(sequence) == [[*one[:4], 1] if one[0] == "press" else one for one in wanted]


def test_a_tap_is_shorter_than_a_long_press():
    [down, wait, up, *_] = gestures.input_events(actions.Click(3, 4), NONE)
    assert (down, up) == (["down", 3, 4], ["up", 3, 4])
    assert wait[1] < 500 < gestures.LONG_PRESS_MS
    assert gestures.input_events(actions.Click(3, 4, "right"), NONE)[1] == ["wait", gestures.LONG_PRESS_MS]


def test_a_swipe_ends_where_it_should_and_at_rest():
    events = gestures.input_events(actions.Drag(10, 20, 30, 5), NONE)
    assert events[0] == ["down", 10, 20]
    assert events[-3:] == [["move", 30, 5], ["wait", gestures.REST_MS], ["up", 30, 5]]


def test_a_scroll_is_a_swipe_of_the_content():
    assert gestures.input_events(actions.Scroll(100, 300, "down", 2), NONE)[-1] == ["up", 100, 200]
    assert gestures.input_events(actions.Scroll(100, 300, "up"), NONE)[-1] == ["up", 100, 450]
    assert gestures.input_events(actions.Scroll(100, 300, "right", 1), NONE)[-1] == ["up", 50, 300]


@pytest.mark.parametrize(
    "action",
    [
        *(actions.Click(1, 1, "middle"), actions.Drag(1, 1, 9, 9, "middle"), actions.Drag(1, 1, 9, 9, "right")),
        *(actions.Hotkey(("no such key",)), actions.KeyDown("shift"), actions.Type("")),
    ],
)
def test_an_action_without_an_equal_does_nothing(action):
    assert gestures.input_events(action, NONE) == []


@pytest.mark.parametrize("name", sorted(keys.NAMED - set(gestures.MODIFIERS)))
def test_a_named_key_is_a_key_of_the_phone_or_does_nothing(name):
    events = gestures.input_events(actions.Hotkey((name,)), NONE)
    if name == "home":
        assert events == [["home"]]
    elif name == "space":
        assert events == [["text", " "]]
    else:
        assert events == ([["key", f"KEYCODE_{gestures.NAMED_KEYS[name]}", 0]] if name in gestures.NAMED_KEYS else [])


def test_keys_with_modifiers_have_their_state():
    assert gestures.input_events(actions.Hotkey(("ctrl", "a")), NONE) == [
        ["key", "KEYCODE_A", gestures.MODIFIERS["ctrl"]]
    ]
    assert gestures.input_events(actions.Hotkey(("left",)), frozenset({"shift"})) == [
        ["key", "KEYCODE_DPAD_LEFT", gestures.MODIFIERS["shift"]]
    ]


def test_lines_are_separated_by_enter():
    assert gestures.input_events(actions.Type("a\n\nb"), NONE) == [
        ["text", "a"],
        ["key", "KEYCODE_ENTER", 0],
        ["key", "KEYCODE_ENTER", 0],
        ["text", "b"],
    ]


def test_the_buttons_of_a_phone_and_the_offered_functions():
    assert gestures.input_events(actions.Hotkey(("back",)), NONE) == [["key", "KEYCODE_BACK", 0]]
    assert gestures.input_events(actions.Call("open_app", {"app_name": "Clock"}), NONE) == [["open", "Clock"]]
    assert gestures.input_events(actions.Call("set_text", {"text": "new"}), NONE) == [["replace", "new"]]
