"""Typed actions in other projects' words."""

import ast

import pytest

from dart_adapters.action_formats import NOTHING, to_androidworld, to_browsergym, to_coord, to_fields
from dart_adapters.settings import clamp_reward, field_of
from dart_streams.actions import Click, Drag, Finished, Hotkey, KeyDown, Scroll, Type, Wait
from workers.env.conformance import ANY_ACTION

COORD = {
    *("scroll_at", "mouse_move", "mouse_up", "mouse_down", "mouse_click", "mouse_dblclick", "mouse_drag_and_drop"),
    *("keyboard_down", "keyboard_up", "keyboard_press", "keyboard_type", "noop"),
}
"""BrowserGym's calls that take pixels."""


def test_any_action_is_a_call_of_browsergym_with_plain_values():
    for action in (*ANY_ACTION, Hotkey(()), Type(""), KeyDown("no such key")):
        for line in to_coord(to_browsergym(action)).splitlines():
            call = ast.parse(line, mode="eval").body
            assert isinstance(call, ast.Call)
            assert call.func.id in COORD
            assert all(isinstance(ast.literal_eval(argument), int | str) for argument in call.args)


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (Scroll(1, 1, "right"), "mouse_wheel(1, 1, 300, 0)"),
        (Finished("it's"), """send_msg_to_user("it's")"""),
        (Type("it's \n<"), """keyboard_type("it's \\n<")"""),
        (Hotkey(("ctrl", "page_up")), "keyboard_press('Control+PageUp')"),
        (Hotkey(("no such key",)), NOTHING),
        (Wait(), "noop(1000)"),
    ],
)
def test_calls_of_browsergym(action, call):
    assert to_browsergym(action) == call


def test_any_action_has_its_type_and_fields():
    assert to_fields(Click(3, 4)) == {"type": "click", "x": 3, "y": 4, "button": "left", "count": 1}
    assert len({to_fields(action)["type"] for action in ANY_ACTION}) == 11


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (Click(1, 2), {"action_type": "click", "x": 1, "y": 2}),
        (Click(1, 2, count=3), {"action_type": "double_tap", "x": 1, "y": 2}),
        (Click(1, 2, "right"), {"action_type": "long_press", "x": 1, "y": 2}),
        (Click(1, 2, "middle"), None),
        (Drag(10, 10, 5, 80), {"action_type": "swipe", "direction": "down"}),
        (Drag(90, 10, 5, 40), {"action_type": "swipe", "direction": "right"}),
        (Hotkey(("return",)), {"action_type": "keyboard_enter"}),
        (Hotkey(("esc",)), {"action_type": "navigate_back"}),
        (Type(""), None),
        (Wait(), None),
    ],
)
def test_actions_of_androidworld(action, wanted):
    assert to_androidworld(action) == wanted


def test_fields_and_rewards():
    assert field_of({"a": {"b": 3}}, "a.b") == 3
    assert field_of({"a": 3}, "a.b") is None
    assert [clamp_reward(reward) for reward in (-1, 0.5, 7)] == [0.0, 0.5, 1.0]
