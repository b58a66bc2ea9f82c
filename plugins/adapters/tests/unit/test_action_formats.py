"""Typed actions in other projects' words."""

import ast
from typing import Any

import pytest

from dart_adapters.action_formats import NOTHING, to_androidworld, to_browsergym, to_coord, to_fields
from dart_adapters.settings import clamp_reward, field_of
from dart_phones.gestures import keys_after
from dart_streams.actions import Click, Drag, Finished, Hotkey, KeyDown, Scroll, Type, Wait
from dart_streams.actions.contract import CONTRACT, Received, make_clicks, make_strokes, normalize_inputs
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


def sent(sequence, convert) -> list[Any]:
    """Return what is sent for actions in turn."""
    held, found = frozenset[str](), []
    for action in sequence:
        found.append(convert(action, held))
        held = keys_after(action, held)
    return found


def of_coord(line: str) -> list[Received]:
    """Return what Playwright's page receives of a call, in the words of the contract of actions."""
    call = ast.parse(line, mode="eval").body
    match call.func.id, *map(ast.literal_eval, call.args):
        case ("mouse_click" | "mouse_dblclick" | "mouse_tripleclick") as name, x, y, button:
            return make_clicks(x, y, button, 1 + ["", "dbl", "triple"].index(name[6:-5]))
        case "mouse_move", x, y:
            return [["move", x, y]]
        case "mouse_down", x, y, button:
            return [["move", x, y], ["press", button, x, y, 1]]
        case "mouse_up", x, y, button:
            return [["move", x, y], ["release", button, x, y]]
        case (("mouse_wheel" | "scroll_at"), x, y, 0, down):
            return [["scroll", "down" if down > 0 else "up", abs(down) // 100, x, y]]
        case (("mouse_wheel" | "scroll_at"), x, y, right, 0):
            return [["scroll", "right" if right > 0 else "left", abs(right) // 100, x, y]]
        case "keyboard_type", text:
            return make_strokes(*({"\n": "enter"}.get(one, one) for one in text))
        case "keyboard_press", names:
            *held, last = ["ctrl" if name == "Control" else name for name in names.split("+")]
            down, up = ([[kind, name] for name in held] for kind in ("down", "up"))
            return [*down, *make_strokes(last), *up]
        case ("keyboard_down" | "keyboard_up") as name, key:
            return [[name[9:], "ctrl" if key == "Control" else key]]
    assert call.func.id == "noop"
    return []


@pytest.mark.parametrize("server", ["gymnasium", "openenv"])
@pytest.mark.parametrize(("sequence", "wanted"), CONTRACT, ids=str)
def test_the_contract_is_sent_to_browsergym_or_nothing_is(sequence, wanted, server):
    calls = sent(sequence, to_browsergym)
    if server == "openenv":
        calls = [to_coord(one) for one in calls]
        wanted = [] if getattr(sequence[0], "count", 1) == 3 else wanted
    assert normalize_inputs(one for some in calls for line in some.splitlines() for one in of_coord(line)) == wanted


@pytest.mark.parametrize("text", ["mouse_wheel(1, 2, 0, 100)", "mouse_tripleclick(1, 2, 'left')", "mouse_wheel"])
def test_a_text_that_looks_like_a_call_is_typed(text):
    assert of_coord(to_coord(to_browsergym(Type(text)))) == make_strokes(*text)


def of_androidworld(body: dict[str, Any]) -> list[Received]:
    """Return what a phone receives of a JSON action; a long press is a click of the right button."""
    match body:
        case {"action_type": ("click" | "double_tap" | "long_press") as kind, "x": x, "y": y}:
            return make_clicks(x, y, "right" if kind == "long_press" else "left", 1 + (kind == "double_tap"))
        case {"action_type": "input_text", "text": text}:
            return make_strokes(*({"\n": "enter", "\t": "tab"}.get(one, one) for one in f"{text}\n"))
        case {"action_type": "keyboard_enter"}:
            return make_strokes("enter")
    return [[body["action_type"], body["direction"]]]


@pytest.mark.parametrize(("sequence", "wanted"), CONTRACT, ids=str)
def test_the_contract_is_sent_to_androidworld_or_nothing_is(sequence, wanted):
    """But for the gestures of a finger: a drag is a swipe, a scroll has no place, and a text ends with Enter."""
    received = [one for body in sent(sequence, to_androidworld) if body for one in of_androidworld(body)]
    match sequence:
        case (Drag(button="left"),):
            assert received == [["swipe", "down"]]
        case (Scroll(direction=towards),):
            assert received == [["scroll", towards]]
        case (KeyDown("shift"), *_):
            assert received == [*wanted, *make_strokes("enter")]
        case _:
            assert received in (wanted, [])


def test_any_action_has_its_type_and_fields():
    assert to_fields(Click(3, 4)) == {"type": "click", "x": 3, "y": 4, "button": "left", "count": 1}
    assert len({to_fields(action)["type"] for action in ANY_ACTION}) == 11


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (Click(1, 2), {"action_type": "click", "x": 1, "y": 2}),
        (Click(1, 2, count=2), {"action_type": "double_tap", "x": 1, "y": 2}),
        (Click(1, 2, count=3), None),
        (Click(1, 2, "right", 2), None),
        (Drag(10, 10, 5, 80, "right"), None),
        (Type("\r\n"), {"action_type": "keyboard_enter"}),
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
