"""The tool ``mobile_use`` of Qwen-VL models, for phones.

A long press is a click of the right button. ``open`` calls the function ``open_app``, which the environment has to
offer.
"""

from collections.abc import Callable
from typing import ClassVar

from dart_streams.actions import typed
from dart_streams.actions.dialects import qwen_prompt
from dart_streams.actions.dialects.dialect import AnswerBuilder, View, written_place
from dart_streams.actions.dialects.json_calls import Fields, key_field, place_numbers, text_field
from dart_streams.actions.dialects.qwen_tool import PLAIN, QwenTool, ToolArguments, plain_fields
from dart_streams.actions.grammar import Unparsable, parse_word

TOOL = qwen_prompt.MOBILE_USE
LOOSE_NAMES = {"left_click": "click", "tap": "click", "drag": "swipe", "open_app": "open"}
"""Aliases outside the tool's definition."""
SYSTEM_BUTTONS = {"back": "Back", "home": "Home", "menu": "Menu", "enter": "Enter"}
"""Buttons of the phone by their key."""


class QwenMobileUse(QwenTool, frozen=True, kw_only=True):
    """Dialect ``qwen-mobile-use``."""

    tool: ClassVar = TOOL

    def _interpret(self, arguments: Fields, builder: AnswerBuilder) -> None:
        call = MobileArguments(builder, arguments, TOOL)
        GRAMMAR[call.action(LOOSE_NAMES)](call)

    def _said(self, action: typed.Action, view: View) -> list[Fields]:
        def at(x: int, y: int) -> list[int]:
            return list(written_place(x, y, view, self.coordinates))

        match action:
            case typed.Click(x, y, "left", 1):
                return [{"action": "click", "coordinate": at(x, y)}]
            case typed.Click(x, y, "right", 1):
                return [{"action": "long_press", "coordinate": at(x, y), "time": 1}]
            case typed.Drag(x, y, to_x, to_y, "left"):
                return [{"action": "swipe", "coordinate": at(x, y), "coordinate2": at(to_x, to_y)}]
        return [without_touch(action)]


def without_touch(action: typed.Action) -> Fields:
    """Return the arguments of an action without coordinates; raise UnsupportedAction if the tool has none."""
    match action:
        case typed.Hotkey((name,)) if name in SYSTEM_BUTTONS:
            return {"action": "system_button", "button": SYSTEM_BUTTONS[name]}
        case typed.Hotkey((name,)):
            return {"action": "key", "text": name}
        case typed.Call("open_app", {"app_name": str(name)}):
            return {"action": "open", "text": name}
    return plain_fields(action, TOOL)


class MobileArguments(ToolArguments):
    """Converts the arguments of a call to an action of the answer."""

    def touch(self, button: typed.Button) -> None:
        """Add a click, or a long press."""
        x, y, _ = self.place(needed=True)
        self.builder.add(typed.Click(x, y, button))

    def swipe(self) -> None:
        """Add a swipe between two places."""
        x, y, _ = self.place(needed=True)
        to_x, to_y = self.builder.place(place_numbers(self.arguments.get("coordinate2"), self.builder))
        self.builder.add(typed.Drag(x, y, to_x, to_y))

    def press(self) -> None:
        """Add a button of the phone; one in other letters is noted."""
        written = text_field(self.arguments, "button")
        name = parse_word(written, "button", tuple(SYSTEM_BUTTONS))
        if written != SYSTEM_BUTTONS[name]:
            self.builder.note("key", f"the button {written[:80]!r} is spelled {SYSTEM_BUTTONS[name]!r}")
        self.builder.add(typed.Hotkey((name,)))

    def open(self) -> None:
        """Add the start of an app."""
        name = text_field(self.arguments, "text")
        if not name.strip():
            raise Unparsable("open names no app")
        self.builder.add(typed.Call("open_app", {"app_name": name}))


GRAMMAR: dict[str, Callable[[MobileArguments], None]] = {
    "key": lambda call: call.builder.add(typed.Hotkey((key_field(call.arguments, "text", call.builder),))),
    "click": lambda call: call.touch("left"),
    "long_press": lambda call: call.touch("right"),
    "swipe": MobileArguments.swipe,
    "system_button": MobileArguments.press,
    "open": MobileArguments.open,
    **PLAIN,
}
