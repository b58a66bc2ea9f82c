"""The tool ``computer_use`` of Qwen-VL models: a JSON call between ``<tool_call>`` and ``</tool_call>``.

Qwen2.5-VL writes pixels of its image, Qwen3-VL 0 to 1000. A click, drag or scroll without coordinates happens at the
pointer. Scroll pixels count as notches, as in OSWorld's agent for these models.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial

from dart_streams.actions import typed
from dart_streams.actions.dialects import json_reader, qwen_prompt
from dart_streams.actions.dialects.dialect import (
    AnswerBuilder,
    Dialect,
    Role,
    UnsupportedAction,
    View,
    signed_notches,
    written_place,
    written_size,
)
from dart_streams.actions.dialects.json_calls import (
    Fields,
    function_call,
    keys_field,
    loose_objects,
    number_field,
    objects_of,
    place_elsewhere,
    place_numbers,
    read_values,
    split_key_name,
    text_field,
)
from dart_streams.actions.grammar import Unparsable
from topics.values import OfferedCall

TOOL = "computer_use"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
BEGINS = re.compile(rf"\s*+(```[a-z]*\s*+)?(?=[{json_reader.INVISIBLE}]*+[\[{{\uff5b])")
"""Text allowed between the tag and a call."""
ENDS = re.compile(
    rf"(?P<more>[\s}}]*+)(?:```\s*+)?"
    rf"(?:(?P<words>[^{{}}\[\]\"'`<>]*+)(?P<closed>{CLOSE})|(?=[,;]?\s*+(?P<next>{{))|(?={OPEN})|\Z)"
)
"""Text allowed after a call: words without JSON punctuation, the closing tag, or the next call."""
CLICKS: dict[str, tuple[typed.Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
KNOWN = {"action", "keys", "text", "coordinate", "pixels", "time", "status"}
LOOSE_NAMES = {"click": "left_click", "move": "mouse_move", "drag": "left_click_drag", "hotkey": "key", "press": "key"}
"""Aliases outside the tool's definition."""


class QwenComputerUse(Dialect, frozen=True, kw_only=True):
    """Dialect ``qwen-computer-use``."""

    def _add_actions(self, answer: str, builder: AnswerBuilder) -> None:
        for call in tool_calls(answer, builder):
            if builder.offered and call.get("name") != TOOL and isinstance(call.get("name"), str):
                builder.add(function_call(call))
            else:
                InterpretedToolCall(builder, arguments_of(call, builder)).add()

    def write(self, action: typed.Action, view: View) -> str:
        """Return the answer for ``action``; drags and scrolls begin with a move."""
        if isinstance(action, typed.Call):
            calls = [{"name": action.name, "arguments": action.arguments}]
        else:
            calls = [{"name": TOOL, "arguments": fields} for fields in self._said(action, view)]
        return "\n".join(f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}" for call in calls)

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

    def system_messages(
        self, instruction: str, view: View, offered: Sequence[OfferedCall] = ()
    ) -> tuple[tuple[Role, str], ...]:
        """Return the prompt's messages before the first screen, as (role, text)."""
        system = qwen_prompt.system_prompt(*written_size(view, self.coordinates), tuple(offered))
        return ("system", system), ("user", instruction)

    def returned_text(self, returned: str) -> str:
        """Return what a call returned in the form of the models' chat template."""
        return f"<tool_response>\n{returned}\n</tool_response>"


def without_place(action: typed.Action) -> Fields:
    """Return the arguments of an action without coordinates; raise :class:`UnsupportedAction` if the tool has none."""
    match action:
        case typed.Hotkey(names):
            return {"action": "key", "keys": list(names)}
        case typed.Type(content):
            return {"action": "type", "text": content}
        case typed.Wait():
            return {"action": "wait", "time": 1}
        case typed.Finished(""):
            return {"action": "terminate", "status": "success"}
        case typed.Finished(content):
            return {"action": "answer", "text": content}
        case typed.CallUser():
            return {"action": "terminate", "status": "failure"}
    raise UnsupportedAction(f"the tool {TOOL} has no action for {action}")


def tool_calls(answer: str, builder: AnswerBuilder) -> list[Fields]:
    """Return the calls of an answer; raise :class:`Unparsable` if there is none or one is ambiguous."""
    opening = answer.find(OPEN)
    if opening < 0:
        builder.note("marker", f"no {OPEN} before the call")
        return loose_objects(answer, builder)
    calls: list[Fields] = []
    end = 0
    while opening >= 0:
        begin = opening + len(OPEN)
        if begins := BEGINS.match(answer, begin):
            if begins[1]:
                builder.note("marker", "a code fence within the call")
            block, end = objects_in_tags(answer, begins.end(), builder)
            calls += block
        else:
            builder.note("marker", f"{OPEN} without a call after it")
            end = begin
        opening = answer.find(OPEN, end)
    if not calls:
        raise Unparsable(f"no JSON object after {OPEN}: {answer[end : end + 80]!r}")
    if answer[end:].strip():
        builder.note("text", f"words after the call: {answer[end:].strip()[:40]!r}")
    return calls


def objects_in_tags(answer: str, begin: int, builder: AnswerBuilder) -> tuple[list[Fields], int]:
    """Return the objects between tags from ``begin`` on, and the offset after them."""
    calls: list[Fields] = []
    for value, ends in read_values(answer, begin, ENDS, builder):
        calls += objects_of(value)
        if len(calls) > 1 or isinstance(value, list):
            builder.note("marker", "a list of calls, or several, between the same tags")
        end, words, closed = ends.end(), ends["words"], ends["closed"]
    if words and words.strip():
        builder.note("text", f"words between the call and {CLOSE}")
    if not closed:
        builder.note("cut", f"no {CLOSE} after the call")
    return calls, end


def arguments_of(call: Fields, builder: AnswerBuilder) -> Fields:
    """Return the arguments of a call of the tool."""
    arguments = call.get("arguments")
    if "action" in call and arguments is None:
        builder.note("argument", f"the arguments are not within a call of {TOOL}")
        return call
    if arguments is None and "parameters" in call:
        builder.note("argument", "the arguments are named parameters")
        arguments = call["parameters"]
    if isinstance(arguments, str):
        builder.note("argument", "the arguments are a text, not an object")
        listed = loose_objects(arguments, builder)
        arguments = listed[0] if len(listed) == 1 else None
    if not isinstance(arguments, dict):
        raise Unparsable(f"a call has no arguments: {str(call)[:80]}")
    if call.get("name") != TOOL:
        builder.note("name", f"the tool is {TOOL}, not {str(call.get('name'))[:80]!r}")
    return arguments


class InterpretedToolCall:
    """Converts the arguments of a call to an action of the answer."""

    def __init__(self, builder: AnswerBuilder, arguments: Fields) -> None:
        self.builder = builder
        self.arguments = arguments

    def add(self) -> None:
        """Add the action; raise :class:`Unparsable` if an argument is missing."""
        name = text_field(self.arguments, "action")
        if (spelled := re.sub(r"[ -]", "_", name.strip().lower())) != name:
            self.builder.note("name", f"the action {name[:80]!r} is spelled {spelled[:80]!r}")
            name = spelled
        if name in LOOSE_NAMES:
            self.builder.note("name", f"{name} is not an action of {TOOL}: read as {LOOSE_NAMES[name]}")
            name = LOOSE_NAMES[name]
        if name not in GRAMMAR:
            raise Unparsable(f"unknown action {name[:80]!r}: known are {', '.join(GRAMMAR)}")
        if unknown := sorted(self.arguments.keys() - KNOWN - {"start_coordinate"}):
            self.builder.note("argument", f"unknown arguments: {', '.join(unknown)[:80]}")
        GRAMMAR[name](self)

    def place(self, needed: bool = False) -> tuple[int, int, bool]:
        """Return the pixel of ``coordinate``, or the pointer's, and whether it is the pointer's."""
        written = self.arguments.get("coordinate")
        if written is None:
            written = place_elsewhere(self.arguments, KNOWN)
        if written is None and not needed:
            return *self.builder.pointer, True
        return *self.builder.place(place_numbers(written, self.builder)), False

    def click(self, button: typed.Button, count: int) -> None:
        """Add a click."""
        x, y, at_pointer = self.place()
        self.builder.add(typed.Click(x, y, button, count), at_pointer)

    def drag(self) -> None:
        """Add a drag from the pointer; another tool's ``start_coordinate`` is noted."""
        start = self.builder.pointer
        if "start_coordinate" in self.arguments:
            self.builder.note("argument", f"start_coordinate is not an argument of {TOOL}")
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

    def terminate(self) -> None:
        """Add the end of the episode: success or failure."""
        status = self.arguments.get("status")
        if status not in ("success", "failure"):
            self.builder.note("argument", f"status is success or failure, not {str(status)[:80]!r}")
        self.builder.add(typed.CallUser() if status == "failure" else typed.Finished())


GRAMMAR: dict[str, Callable[[InterpretedToolCall], None]] = {
    "key": InterpretedToolCall.key,
    "type": lambda call: call.builder.add(typed.Type(text_field(call.arguments, "text"))),
    "mouse_move": lambda call: call.builder.add(typed.Move(*call.place(needed=True)[:2])),
    **{name: partial(InterpretedToolCall.click, button=kind[0], count=kind[1]) for name, kind in CLICKS.items()},
    "left_click_drag": InterpretedToolCall.drag,
    "scroll": lambda call: call.scroll("up", "down"),
    "hscroll": lambda call: call.scroll("right", "left"),
    "wait": lambda call: call.builder.add(typed.Wait()),
    "terminate": InterpretedToolCall.terminate,
    "answer": lambda call: call.builder.add(typed.Finished(text_field(call.arguments, "text"))),
}
CLICK_NAMES = {kind: name for name, kind in CLICKS.items()}
