"""What a person does on a screen becomes a typed action of the language, or is refused with a reason for them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.views.play.gestures import AnyGesture, Typed, UnknownGesture, action_of
from console.views.play.play_socket import Act
from dart_streams import actions
from dart_streams.actions import Click, Drag, Hotkey, KeyDown, Move, Scroll, Type, Wait

SIZE = (160, 210)
NUMBERS = st.floats(-1e5, 1e5)


def read(**gesture) -> AnyGesture:
    """Return a gesture as the page sends it."""
    return msgspec.convert(gesture, AnyGesture)


@pytest.mark.parametrize(
    "gesture, action",
    [
        ({"kind": "click", "x": 84.9, "y": 120.2}, Click(84, 120)),
        ({"kind": "click", "x": 3, "y": 4, "button": "right", "count": 2}, Click(3, 4, "right", 2)),
        ({"kind": "drag", "x": 1, "y": 2, "to_x": 30, "to_y": 40}, Drag(1, 2, 30, 40)),
        ({"kind": "hover", "x": 7, "y": 8}, Move(7, 8)),
        ({"kind": "wheel", "x": 7, "y": 8, "down": 240}, Scroll(7, 8, "down", 2)),
        ({"kind": "wheel", "x": 7, "y": 8, "down": -3}, Scroll(7, 8, "up", 1)),
        ({"kind": "wheel", "x": 7, "y": 8, "right": -120, "down": 60}, Scroll(7, 8, "left", 1)),
        ({"kind": "wheel", "x": 7, "y": 8, "down": 1e5}, Scroll(7, 8, "down", 100)),
        ({"kind": "text", "text": "é😀 'x'"}, Type("é😀 'x'")),
        ({"kind": "keys", "keys": ["Enter"]}, Hotkey(("enter",))),
        ({"kind": "keys", "keys": ["ctrl", "ArrowLeft"]}, Hotkey(("ctrl", "left"))),
        ({"kind": "action", "action": "press(key='shift')"}, KeyDown("shift")),
        ({"kind": "action", "action": " Action: wait() "}, Wait()),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_a_gesture_is_the_action_that_it_shows(gesture, action):
    assert action_of(read(**gesture), SIZE) == action


@pytest.mark.parametrize(
    "gesture, reason",
    [
        ({"kind": "keys", "keys": ["ctrl", "BrightnessUp"]}, "no keyboard has the key 'BrightnessUp'"),
        ({"kind": "wheel", "x": 1, "y": 1}, "the wheel did not turn"),
        ({"kind": "action", "action": "jump()"}, "unknown action 'jump'"),
    ],
    ids=["key", "wheel", "action"],
)
def test_what_no_action_stands_for_is_refused_with_the_reason(gesture, reason):
    with pytest.raises(UnknownGesture, match=reason):
        action_of(read(**gesture), SIZE)


def test_half_of_a_character_is_refused_before_it_is_a_record():
    with pytest.raises(UnknownGesture, match="half of a character"):
        action_of(Typed(text="a\ud83d"), SIZE)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_every_place_is_on_the_screen_and_every_action_is_readable(x, y, to_x, to_y):
    drag = action_of(read(kind="drag", x=x, y=y, to_x=to_x, to_y=to_y), SIZE)
    assert all(0 <= value < SIZE[0] for value in (drag.x, drag.to_x))
    assert all(0 <= value < SIZE[1] for value in (drag.y, drag.to_y))
    assert actions.parse(actions.format(drag)) == drag


@pytest.mark.parametrize(
    "message",
    [
        b'{"do":"act","request":"r","gesture":{"kind":"click","x":1e999,"y":1}}',
        b'{"do":"act","request":"r","gesture":{"kind":"click","x":1,"y":1,"count":4}}',
        b'{"do":"act","request":"r","gesture":{"kind":"click","x":1,"y":1,"button":"fourth"}}',
        b'{"do":"act","request":"r","gesture":{"kind":"text","text":""}}',
        b'{"do":"act","request":"r","gesture":{"kind":"shout","text":"a"}}',
        b'{"do":"act","request":"r","gesture":{"kind":"keys","keys":[]}}',
    ],
)
def test_a_message_outside_of_the_bounds_is_no_gesture(message):
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(message, type=Act)
