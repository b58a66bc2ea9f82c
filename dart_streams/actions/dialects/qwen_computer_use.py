"""The tool ``computer_use`` of Qwen-VL models.

A click, drag or scroll without coordinates happens at the pointer. Scroll pixels count as notches, as in OSWorld's
agent for these models.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from dart_streams.actions import typed
from dart_streams.actions.dialects import qwen_prompt
from dart_streams.actions.dialects.dialect import AnswerBuilder, View, signed_notches, written_place
from dart_streams.actions.dialects.json_calls import Fields, keys_field, number_field, place_numbers, split_key_name
from dart_streams.actions.dialects.qwen_tool import PLAIN, QwenTool, ToolArguments, plain_fields

TOOL = qwen_prompt.COMPUTER_USE
CLICKS: dict[str, tuple[typed.Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
LOOSE_NAMES = {"click": "left_click", "move": "mouse_move", "drag": "left_click_drag", "hotkey": "key", "press": "key"}
"""Aliases outside the tool's definition."""


class QwenComputerUse(QwenTool, frozen=True, kw_only=True):
    """Dialect ``qwen-computer-use``; drags and scrolls are written with a move before them."""

    tool: ClassVar = TOOL

    def _interpret(self, arguments: Fields, builder: AnswerBuilder) -> None:
        call = ComputerArguments(builder, arguments, TOOL)
        GRAMMAR[call.action(LOOSE_NAMES)](call)

    def _said(self, action: typed.Action, view: View) -> list[Fields]:
        def at(name: str, x: int, y: int) -> Fields:
            return {"action": name, "coordinate": list(written_place(x, y, view, self.coordinates))}

        match action:
            case typed.Click(x, y, button, count) if name := CLICK_NAMES.get((button, count)):
                return [at(name, x, y)]
            case typed.Move(x, y):
                return [at("mouse_move", x, y)]
            case typed.Drag(x, y, to_x, to_y, "left"):
                return [at("mouse_move", x, y), at("left_click_drag", to_x, to_y)]
            case typed.Scroll(x, y, direction):
                return [
                    at("scroll" if direction in {"up", "down"} else "hscroll", x, y)
                    | {"pixels": signed_notches(action)}
                ]
        return [without_place(action)]


def without_place(action: typed.Action) -> Fields:
    """Return the arguments of an action without coordinates; raise :class:`UnsupportedAction` if the tool has none."""
    match action:
        case typed.Hotkey(names):
            return {"action": "key", "keys": list(names)}
    return plain_fields(action, TOOL)


class ComputerArguments(ToolArguments):
    """Converts the arguments of a call to an action of the answer."""

    def click(self, button: typed.Button, count: int) -> None:
        """Add a click."""
        x, y, at_pointer = self.place()
        self.builder.add(typed.Click(x, y, button, count), at_pointer)

    def drag(self) -> None:
        """Add a drag from the pointer; another tool's ``start_coordinate`` is noted."""
        start = self.builder.pointer
        if "start_coordinate" in self.arguments:
            self.builder.note("argument", f"start_coordinate is not an argument of {TOOL.name}")
            start = self.builder.place(place_numbers(self.arguments["start_coordinate"], self.builder))
        x, y, _ = self.place(needed=True)
        self.builder.add(typed.Drag(*start, x, y), at_pointer=True)

    def scroll(self, up: typed.Direction, down: typed.Direction) -> None:
        """Add a scroll; positive pixels scroll up or right."""
        pixels = number_field(self.arguments, "pixels", self.builder)
        x, y, at_pointer = self.place()
        self.builder.add(typed.Scroll(x, y, up if pixels > 0 else down, self.builder.amount(pixels)), at_pointer)

    def key(self) -> None:
        """Add a key combination; another tool's ``text`` is noted."""
        if "keys" not in self.arguments and isinstance(self.arguments.get("text"), str):
            self.builder.note("key", "keys are named text")
            self.builder.add(typed.Hotkey(split_key_name(self.arguments["text"], self.builder)))
        else:
            self.builder.add(typed.Hotkey(keys_field(self.arguments, "keys", self.builder)))


GRAMMAR: dict[str, Callable[[ComputerArguments], None]] = {
    "key": ComputerArguments.key,
    "mouse_move": lambda call: call.builder.add(typed.Move(*call.place(needed=True)[:2])),
    **{name: partial(ComputerArguments.click, button=kind[0], count=kind[1]) for name, kind in CLICKS.items()},
    "left_click_drag": ComputerArguments.drag,
    "scroll": lambda call: call.scroll("up", "down"),
    "hscroll": lambda call: call.scroll("right", "left"),
    **PLAIN,
}
CLICK_NAMES = {kind: name for name, kind in CLICKS.items()}
