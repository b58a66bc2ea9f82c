"""Actions as programs of pyautogui, run here against one that notes its calls."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_desktops.osworld.backend import OsworldBackend
from dart_desktops.osworld.pyautogui_programs import build_program
from dart_streams import actions
from dart_streams.actions import Action, Click, Hotkey, Scroll, Type
from dart_streams.config import Config, Env, Osworld, OsworldMachine, parse
from dart_streams.errors import ConfigError


def calls(action: Action) -> list[str]:
    """Return the calls of an action's program, without what each begins with."""
    source = build_program(action)
    if source is None:
        return []
    body = ast.parse(source).body
    return [ast.unparse(node) for node in body if isinstance(node, ast.Expr)]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Click(3, 4), ["pyautogui.click(3, 4, clicks=1, button='left')"]),
        (Click(3, 4, "right", 2), ["pyautogui.click(3, 4, clicks=2, button='right')"]),
        (actions.Move(3, 4), ["pyautogui.moveTo(3, 4)"]),
        (actions.Drag(1, 2, 3, 4), ["pyautogui.moveTo(1, 2)", "pyautogui.dragTo(3, 4, duration=0.5, button='left')"]),
        (actions.MouseDown(1, 2), ["pyautogui.moveTo(1, 2)", "pyautogui.mouseDown(button='left')"]),
        (actions.MouseUp(1, 2, "middle"), ["pyautogui.moveTo(1, 2)", "pyautogui.mouseUp(button='middle')"]),
        (Scroll(1, 2, "up"), ["pyautogui.scroll(5, x=1, y=2)"]),
        (Scroll(1, 2, "down", 7), ["pyautogui.scroll(-7, x=1, y=2)"]),
        (Scroll(1, 2, "left", 3), ["pyautogui.hscroll(-3, x=1, y=2)"]),
        (Scroll(1, 2, "right"), ["pyautogui.hscroll(5, x=1, y=2)"]),
        (Hotkey(("ctrl", "A")), ["pyautogui.hotkey('ctrl', 'A')"]),
        (Hotkey(("ArrowLeft",)), ["pyautogui.hotkey('left')"]),
        (Hotkey(("cmd", "page_up")), ["pyautogui.hotkey('win', 'pageup')"]),
        (Hotkey(("no such key",)), []),
        (Hotkey(("ctrl", "no such key", "s")), ["pyautogui.hotkey('ctrl', 's')"]),
        (Hotkey(("<",)), ["type_any('<')"]),
        (actions.KeyDown("shift"), ["pyautogui.keyDown('shift')"]),
        (actions.KeyUp("return"), ["pyautogui.keyUp('enter')"]),
        (actions.KeyUp("__import__('os')"), []),
        (Type("a\nb"), ["pyautogui.typewrite('a\\nb')"]),
        (Type("a<é>b"), ["pyautogui.typewrite('a')", "type_any('<é')", "pyautogui.typewrite('>b')"]),
        (Type("a\x00\x07b"), ["pyautogui.typewrite('ab')"]),
        (Type(""), []),
        (actions.Wait(), []),
        (actions.Finished(), []),
        (actions.CallUser(), []),
    ],
)
def test_each_action_has_its_calls(action, expected):
    assert calls(action) == expected


@given(st.text())
def test_any_text_is_typed_in_order_and_is_never_code(text):
    """The program has these calls with one text each, whatever quotes or line breaks the text has."""
    typed = ""
    for call in calls(Type(text)):
        node = ast.parse(call, mode="eval").body
        assert isinstance(node, ast.Call)
        assert ast.unparse(node.func) in {"pyautogui.typewrite", "type_any"}
        [argument] = node.args
        assert isinstance(argument, ast.Constant)
        assert argument.value
        typed += argument.value
        if ast.unparse(node.func) == "pyautogui.typewrite":
            assert argument.value.isascii()
            assert "<" not in argument.value
    assert typed == "".join(character for character in text if character.isprintable() or character in "\n\t")


@given(st.lists(st.text(max_size=12), max_size=4))
def test_no_name_of_a_key_is_code(names):
    for call in calls(Hotkey(tuple(names))):
        node = ast.parse(call, mode="eval").body
        assert isinstance(node, ast.Call)
        assert all(isinstance(argument, ast.Constant) for argument in node.args)


def test_every_program_turns_the_fail_safe_off():
    assert str(build_program(Click(0, 0))).startswith("import pyautogui\npyautogui.FAILSAFE = False\n")


# --- where machines come from

LISTED = (OsworldMachine(url="http://127.0.0.1:5000"),)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (Osworld(), "needs one of machines, lease_url and acquire; it has none"),
        (Osworld(lease_url="http://h", acquire=("x",)), "it has lease_url and acquire"),
        (Osworld(machines=LISTED), "are not reverted"),
        (Osworld(lease_url="http://h", lease_token="env:DART_NO_SUCH_VARIABLE"), "env.osworld.lease_token"),
    ],
)
def test_machines_that_cannot_be_had_or_are_not_fresh_are_refused(settings, why):
    with pytest.raises(ConfigError, match=why):
        OsworldBackend(Config(env=Env(backend="osworld", osworld=settings)))


def test_a_list_that_somebody_else_reverts_is_accepted():
    OsworldBackend(Config(env=Env(backend="osworld", osworld=Osworld(machines=LISTED, fresh="given"))))


@pytest.mark.parametrize(
    "tables",
    [
        {"env": {"osworld": {"lease_token": "secret"}}},
        {"env": {"osworld": {"machines": [{"url": "http://h", "token": "secret"}]}}},
        {"desktops": {"token": "secret"}},
    ],
)
def test_a_token_is_not_in_the_configuration_itself(tables):
    with pytest.raises(ConfigError, match="must say where") as caught:
        parse(tables)
    assert "secret" not in str(caught.value)
