"""The dialect of the Qwen-VL models' tool ``computer_use``: a JSON call between ``<tool_call>`` and ``</tool_call>``.

Qwen2.5-VL writes pixels of the image that it sees, Qwen3-VL 0 to 1000. A click, drag or scroll without a place is at
the pointer. Pixels of a scroll are notches of the wheel, as OSWorld's agent for these models takes them.
"""

import re
from collections.abc import Callable

from dart_streams.actions.dialects import json_reader, qwen_prompt
from dart_streams.actions.dialects.dialect import (
    AnswerBuilder,
    Coordinates,
    ParsedAnswer,
    Role,
    UnsupportedAction,
    View,
    signed_notches,
    written_place,
    written_size,
)
from dart_streams.actions.dialects.json_calls import (
    Fields,
    JsonDialect,
    encode_spaced,
    keys_field,
    loose_objects,
    number_field,
    objects_of,
    place_elsewhere,
    place_numbers,
    split_key_name,
    text_field,
)
from dart_streams.actions.grammar import Unparsable
from dart_streams.actions.typed import (
    Action,
    Button,
    CallUser,
    Click,
    Direction,
    Drag,
    Finished,
    Hotkey,
    Move,
    Scroll,
    Type,
    Wait,
)

TOOL = "computer_use"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
BEGINS = re.compile(rf"\s*+(```[a-z]*\s*+)?(?=[{json_reader.INVISIBLE}]*+[\[{{\uff5b])")
"""What may stand between the tag and a call."""
ENDS = re.compile(
    rf"(?P<more>[\s}}]*+)(?:```\s*+)?"
    rf"(?:(?P<words>[^{{}}\[\]\"'`<>]*+)(?P<closed>{CLOSE})|(?=[,;]?\s*+(?P<next>{{))|(?={OPEN})|\Z)"
)
"""What may follow a call: words without any of JSON's marks, its tag, or the next call."""
CLICKS: dict[str, tuple[Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
KNOWN = {"action", "keys", "text", "coordinate", "pixels", "time", "status"}
LOOSE_NAMES = {"click": "left_click", "move": "mouse_move", "drag": "left_click_drag", "hotkey": "key", "press": "key"}
"""What these models are not to write, and what it means."""


class QwenComputerUse(JsonDialect, frozen=True, kw_only=True):
    """Answers of the Qwen-VL models."""

    def read(self, answer: str, view: View) -> ParsedAnswer:
        """Read an answer; raise :class:`Unparsable` if it says no action, or has something wrong and may not."""
        found = AnswerBuilder(view)
        for call in tool_calls(answer, found):
            InterpretedToolCall(found, arguments_of(call, found), self.coordinates).add()
        return found.reading(self.strictness, self.several)

    def write(self, action: Action, view: View) -> str:
        """Return the answer that says ``action``; a drag or a scroll begins with a move to its place."""
        calls = [{"name": TOOL, "arguments": fields} for fields in self._said(action, view)]
        return "\n".join(f"{OPEN}\n{encode_spaced(call)}\n{CLOSE}" for call in calls)

    def _said(self, action: Action, view: View) -> list[Fields]:
        def at(name: str, x: int, y: int) -> Fields:
            return {"action": name, "coordinate": list(written_place(x, y, view, self.coordinates))}

        match action:
            case Click(x, y, button, count) if name := CLICK_NAMES.get((button, count)):
                return [at(name, x, y)]
            case Move(x, y):
                return [at("mouse_move", x, y)]
            case Drag(x, y, to_x, to_y, "left"):
                return [at("mouse_move", x, y), at("left_click_drag", to_x, to_y)]
            case Scroll(x, y, direction):
                return [
                    at("scroll" if direction in {"up", "down"} else "hscroll", x, y)
                    | {"pixels": signed_notches(action)}
                ]
        return [without_place(action)]

    def system_messages(self, instruction: str, view: View) -> tuple[tuple[Role, str], ...]:
        """Return the texts of the prompt before the first screen."""
        return ("system", qwen_prompt.system_prompt(*written_size(view, self.coordinates))), ("user", instruction)


def without_place(action: Action) -> Fields:
    """Return the arguments of an action that has no place; raise :class:`UnsupportedAction` if the tool has none."""
    match action:
        case Hotkey(names):
            return {"action": "key", "keys": list(names)}
        case Type(content):
            return {"action": "type", "text": content}
        case Wait():
            return {"action": "wait", "time": 1}
        case Finished(""):
            return {"action": "terminate", "status": "success"}
        case Finished(content):
            return {"action": "answer", "text": content}
        case CallUser():
            return {"action": "terminate", "status": "failure"}
    raise UnsupportedAction(f"the tool {TOOL} has no action for {action}")


def tool_calls(answer: str, found: AnswerBuilder) -> list[Fields]:
    """Return the calls of an answer; raise :class:`Unparsable` if there is none, or one has no single meaning."""
    opening = answer.find(OPEN)
    if opening < 0:
        found.note("marker", f"no {OPEN} before the call")
        return loose_objects(answer, found)
    calls: list[Fields] = []
    end = 0
    while opening >= 0:
        begin = opening + len(OPEN)
        if begins := BEGINS.match(answer, begin):
            if begins[1]:
                found.note("marker", "a code fence within the call")
            block, end = objects_in_tags(answer, begins.end(), found)
            calls += block
        else:
            found.note("marker", f"{OPEN} without a call after it")
            end = begin
        opening = answer.find(OPEN, end)
    if not calls:
        raise Unparsable(f"no JSON object after {OPEN}: {answer[end : end + 80]!r}")
    if answer[end:].strip():
        found.note("text", f"words after the call: {answer[end:].strip()[:40]!r}")
    return calls


def objects_in_tags(answer: str, begin: int, found: AnswerBuilder) -> tuple[list[Fields], int]:
    """Return the objects between tags, the first of which begins at ``begin``, and where the text after them begins."""
    calls: list[Fields] = []
    while True:
        value, end, wrong = json_reader.read(answer, begin, lambda place: ENDS.match(answer, place) is not None)
        found.wrong += wrong
        calls += objects_of(value)
        if len(calls) > 1 or isinstance(value, list):
            found.note("marker", "a list of calls, or several, between the same tags")
        ends = ENDS.match(answer, end)
        assert ends is not None
        if "}" in ends["more"]:
            found.note("json", "a brace too many")
        if (ends["words"] or "").strip():
            found.note("text", f"words between the call and {CLOSE}")
        if ends["closed"]:
            return calls, ends.end()
        if not ends["next"]:
            found.note("cut", f"no {CLOSE} after the call")
            return calls, ends.end()
        begin = ends.start("next")


def arguments_of(call: Fields, found: AnswerBuilder) -> Fields:
    """Return the arguments of a call of the tool."""
    arguments = call.get("arguments")
    if "action" in call and arguments is None:
        found.note("argument", f"the arguments are not within a call of {TOOL}")
        return call
    if arguments is None and "parameters" in call:
        found.note("argument", "the arguments are named parameters")
        arguments = call["parameters"]
    if isinstance(arguments, str):
        found.note("argument", "the arguments are a text, not an object")
        listed = loose_objects(arguments, found)
        arguments = listed[0] if len(listed) == 1 else None
    if not isinstance(arguments, dict):
        raise Unparsable(f"a call has no arguments: {str(call)[:80]}")
    if call.get("name") != TOOL:
        found.note("name", f"the tool is {TOOL}, not {str(call.get('name'))[:80]!r}")
    return arguments


class InterpretedToolCall:
    """Adds the action that the arguments of a call mean to those found."""

    def __init__(self, found: AnswerBuilder, arguments: Fields, coordinates: Coordinates) -> None:
        self.found = found
        self.arguments = arguments
        self.coordinates = coordinates

    def add(self) -> None:
        """Add it; raise :class:`Unparsable` if it lacks something."""
        name = text_field(self.arguments, "action")
        if (spelled := re.sub(r"[ -]", "_", name.strip().lower())) != name:
            self.found.note("name", f"the action {name[:80]!r} is spelled {spelled[:80]!r}")
            name = spelled
        if name in LOOSE_NAMES:
            self.found.note("name", f"{name} is not an action of {TOOL}: read as {LOOSE_NAMES[name]}")
            name = LOOSE_NAMES[name]
        if name not in GRAMMAR:
            raise Unparsable(f"unknown action {name[:80]!r}: known are {', '.join(GRAMMAR)}")
        if unknown := sorted(self.arguments.keys() - KNOWN - {"start_coordinate"}):
            self.found.note("argument", f"unknown arguments: {', '.join(unknown)[:80]}")
        GRAMMAR[name](self)

    def place(self, needed: bool = False) -> tuple[int, int, bool]:
        """Return the pixel of ``coordinate``, or the pointer's, and whether it is that."""
        written = self.arguments.get("coordinate")
        if written is None:
            written = place_elsewhere(self.arguments, KNOWN)
        if written is None and not needed:
            return *self.found.pointer, True
        read = place_numbers(written, self.found)
        return *self.found.place(read, self.coordinates), False

    def click(self, button: Button, count: int) -> None:
        """Add a click."""
        x, y, at_pointer = self.place()
        self.found.add(Click(x, y, button, count), at_pointer)

    def move(self) -> None:
        """Add a move."""
        x, y, _ = self.place(needed=True)
        self.found.add(Move(x, y))

    def drag(self) -> None:
        """Add a drag from where the pointer is; the start that other tools name is noted."""
        start = self.found.pointer
        if "start_coordinate" in self.arguments:
            self.found.note("argument", f"start_coordinate is not an argument of {TOOL}")
            start = self.found.place(place_numbers(self.arguments["start_coordinate"], self.found), self.coordinates)
        x, y, _ = self.place(needed=True)
        self.found.add(Drag(*start, x, y), at_pointer=True)

    def scroll(self, up: Direction, down: Direction) -> None:
        """Add a turn of the wheel; up and right are positive."""
        pixels = number_field(self.arguments, "pixels", self.found)
        x, y, at_pointer = self.place()
        self.found.add(Scroll(x, y, up if pixels > 0 else down, self.found.amount(pixels)), at_pointer)

    def key(self) -> None:
        """Add a combination of keys; those that another tool would have as its text are noted."""
        if "keys" not in self.arguments and isinstance(self.arguments.get("text"), str):
            self.found.note("key", "keys are named text")
            self.found.add(Hotkey(split_key_name(self.arguments["text"], self.found)))
        else:
            self.found.add(Hotkey(keys_field(self.arguments, "keys", self.found)))

    def terminate(self) -> None:
        """Add the end: success or failure."""
        status = self.arguments.get("status")
        if status not in ("success", "failure"):
            self.found.note("argument", f"status is success or failure, not {str(status)[:80]!r}")
        self.found.add(CallUser() if status == "failure" else Finished())


Build = Callable[[InterpretedToolCall], None]


def click_builder(button: Button, count: int) -> Build:
    """Return how a named kind of click is added."""
    return lambda call: call.click(button, count)


GRAMMAR: dict[str, Build] = {
    "key": InterpretedToolCall.key,
    "type": lambda call: call.found.add(Type(text_field(call.arguments, "text"))),
    "mouse_move": InterpretedToolCall.move,
    **{name: click_builder(*kind) for name, kind in CLICKS.items()},
    "left_click_drag": InterpretedToolCall.drag,
    "scroll": lambda call: call.scroll("up", "down"),
    "hscroll": lambda call: call.scroll("right", "left"),
    "wait": lambda call: call.found.add(Wait()),
    "terminate": InterpretedToolCall.terminate,
    "answer": lambda call: call.found.add(Finished(text_field(call.arguments, "text"))),
}
CLICK_NAMES = {kind: name for name, kind in CLICKS.items()}
