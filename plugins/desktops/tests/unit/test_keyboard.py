"""Keys mean the same on every backend: the browser, desktops (OSWorld's machines among them) and BrowserGym."""

import ast
from collections.abc import Iterable

import pytest

from dart_adapters import action_formats
from dart_desktops.desktop.inputs import NAMED_KEYS, input_events
from dart_phones import gestures
from dart_streams import actions
from dart_streams.actions import keys
from tests.keyboard import EDITED, TYPED
from workers.env.backends.miniwob import inputs

SHIFT, COMMANDING = "Shift_L", {"Control_L", "Alt_L", "Super_L"}


def typed_in_browser(sequence: Iterable[actions.Action]) -> str:
    """Return the text that Chromium inserts for its input events."""
    held, text = inputs.NOTHING_HELD, ""
    for action in sequence:
        calls, held = inputs.input_calls(action, held)
        text += "".join(params.get("text", "") for _, params in calls)
    return text


def typed_on_desktop(sequence: Iterable[actions.Action]) -> str:
    """Return what a US keyboard types by the events of a desktop."""
    down, text = [], ""
    for kind, name in (event for action in sequence for event in input_events(action)):
        characters = name if kind == "text" else " " if name == "space" else name if len(name) == 1 else ""
        if kind != "up" and COMMANDING.isdisjoint(down):
            plain = [character for character in characters if character.isascii()]
            text += "".join(keys.with_shift(one) if SHIFT in down and one in plain else one for one in characters)
        if kind == "down":
            down.append(name)
        elif kind == "up":
            down.remove(name)
    return text


def typed_by_playwright(sequence: Iterable[actions.Action]) -> str:
    """Return what Playwright types by BrowserGym's calls: a character, also while Shift is held."""
    held, text = frozenset[str](), ""
    for action in sequence:
        for call in ast.parse(action_formats.to_browsergym(action, held)).body:
            name, argument = call.value.func.id, ast.literal_eval(call.value.args[0])
            pressed = argument.replace("++", "+plus").split("+") if argument not in {0, "+"} else [argument]
            for one in pressed if name in {"keyboard_press", "keyboard_down"} else []:
                key = {"plus": "+", "Space": " "}.get(one, one)
                text += key if len(key) == 1 else ""
            text += argument if name == "keyboard_type" else ""
        held = gestures.keys_after(action, held)
    return text


FEWER = {"éß€中😀´ÉÉ": 6, "A!é ": 2}
"""Of what no US keyboard has, Playwright only types what is pressed alone."""


@pytest.mark.parametrize("typed", [typed_in_browser, typed_on_desktop, typed_by_playwright])
@pytest.mark.parametrize(("sequence", "text"), TYPED, ids=range(len(TYPED)))
def test_keys_type_the_same_on_each_backend(typed, sequence, text):
    if typed is typed_by_playwright:
        possible = FEWER.get(text, len(text))
        sequence, text = sequence[: len(sequence) * possible // max(1, len(text))], text[:possible]
    assert typed(sequence) == text


SPELLED = {
    "enter": "return Return RETURN KP_Enter enter NumpadEnter",
    "escape": "esc Escape ESC",
    "backspace": "BackSpace back_space BKSP",
    "delete": "del Delete DEL",
    "insert": "ins Insert",
    "space": "spacebar Space",
    "ctrl": "control Ctrl CONTROL Control_L Control_R ctrlleft ctrlright ControlLeft ControlRight",
    "alt": "Alt_L Alt_R option altleft AltRight AltGraph",
    "shift": "Shift_L Shift_R shiftleft ShiftRight",
    "meta": "cmd command win windows super Super_L Super_R Meta_L MetaRight winleft winright",
    "pageup": "page_up PageUp Page_Up pgup Prior page-up",
    "pagedown": "page_down PageDown pgdn Next page-down",
    "up": "ArrowUp arrow_up Up",
    "down": "ArrowDown Down",
    "left": "ArrowLeft Left",
    "right": "ArrowRight Right",
    "f5": "F5 f5",
    "f12": "F12",
    "home": "Home HOME",
    "end": "End",
    "menu": "apps ContextMenu Menu",
    "printscreen": "Print PrtSc print_screen",
}
SPELLINGS = [(spelling, name) for name, spellings in SPELLED.items() for spelling in spellings.split()]


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS)
def test_a_key_is_the_same_however_it_is_spelled_on_each_backend(spelling, name):
    plain, spelled = actions.Hotkey((name,)), actions.Hotkey((spelling,))
    assert inputs.input_calls(spelled) == inputs.input_calls(plain)
    assert input_events(spelled) == input_events(plain) == [[kind, NAMED_KEYS[name]] for kind in ("down", "up")]
    assert action_formats.to_browsergym(spelled) == action_formats.to_browsergym(plain) != action_formats.NOTHING
    assert action_formats.to_androidworld(spelled) == action_formats.to_androidworld(plain)


def test_each_key_with_a_name_is_one_of_each_backend():
    assert set(inputs.NAMED_KEYS) == set(NAMED_KEYS) == keys.NAMED
    beyond = {f"f{number}" for number in range(13, 25)}
    assert set(action_formats.NAMED_KEYS) == keys.NAMED - beyond, "Playwright has twelve"


@pytest.mark.parametrize("modifier", ["ctrl", "alt", "meta"])
def test_a_capital_with_a_modifier_means_its_key(modifier):
    for capital, small in (("A", "a"), ("Z", "z")):
        plain, other = actions.Hotkey((modifier, small)), actions.Hotkey((modifier, capital))
        assert inputs.input_calls(other) == inputs.input_calls(plain)
        assert input_events(other) == input_events(plain)
        assert action_formats.to_browsergym(other) == action_formats.to_browsergym(plain)


def test_what_has_no_key_presses_none():
    for name in ("dead_acute", "fn", "nonsense", "\0", "e\u0301"):
        for action in (actions.Hotkey((name,)), actions.KeyDown(name), actions.KeyUp(name)):
            assert inputs.input_calls(action) == ([], inputs.NOTHING_HELD)
            assert input_events(action) == []
            assert action_formats.to_browsergym(action) == action_formats.NOTHING


def test_the_table_has_each_kind_of_action_of_the_keyboard():
    kinds = {type(action) for sequence, _ in (*TYPED, *EDITED) for action in sequence}
    assert kinds == {actions.Hotkey, actions.KeyDown, actions.KeyUp, actions.Type}
