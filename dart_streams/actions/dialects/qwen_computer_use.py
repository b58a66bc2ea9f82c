"""The dialect of the Qwen-VL models' tool ``computer_use``: a JSON call between ``<tool_call>`` and ``</tool_call>``.

Qwen2.5-VL writes pixels of the image that it sees, Qwen3-VL 0 to 1000. A click, drag or scroll without a place is at
the pointer. Pixels of a scroll are notches of the wheel, as OSWorld's agent for these models takes them.
"""

import re
from collections.abc import Callable

from dart_streams.actions.dialects import qwen_prompt
from dart_streams.actions.dialects.dialect import (
    Coordinates,
    Found,
    Inexpressible,
    Reading,
    Role,
    View,
    signed,
    written_place,
    written_size,
)
from dart_streams.actions.dialects.json_calls import (
    Fields,
    JsonDialect,
    bounded,
    compact,
    decoded,
    keys,
    loose_objects,
    number,
    object_of,
    text,
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

    def read(self, answer: str, view: View) -> Reading:
        """Read an answer; raise :class:`Unparsable` if it says no action, or has something wrong and may not."""
        found = Found(view)
        for call in tool_calls(bounded(answer), found):
            InterpretedToolCall(found, arguments_of(call, found), self.coordinates).add()
        return found.reading(self.strictness, self.several)

    def write(self, action: Action, view: View) -> str:
        """Return the answer that says ``action``; a drag or a scroll begins with a move to its place."""
        calls = [{"name": TOOL, "arguments": fields} for fields in self._said(action, view)]
        return "\n".join(f"{OPEN}\n{compact(call)}\n{CLOSE}" for call in calls)

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
                return [at("scroll" if direction in {"up", "down"} else "hscroll", x, y) | {"pixels": signed(action)}]
        return [without_place(action)]

    def opening(self, instruction: str, view: View) -> tuple[tuple[Role, str], ...]:
        """Return the texts of the prompt before the first screen."""
        return ("system", qwen_prompt.system(*written_size(view, self.coordinates))), ("user", instruction)


def without_place(action: Action) -> Fields:
    """Return the arguments of an action that has no place; raise :class:`Inexpressible` if the tool has none."""
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
    raise Inexpressible(f"the tool {TOOL} has no action for {action}")


def tool_calls(answer: str, found: Found) -> list[Fields]:
    """Return the calls of an answer; raise :class:`Unparsable` if there is none, or one is not JSON."""
    first, *blocks = answer.split(OPEN)
    if not blocks:
        found.note("marker", f"no {OPEN} before the call")
        fence = re.sub(r"```(?:json)?", "", first)
        return loose_objects(fence, found)
    calls = []
    for block in blocks:
        inside, closed, after = block.partition(CLOSE)
        if not closed:
            found.note("cut", f"no {CLOSE} after the call")
        if after.strip() and block is blocks[-1]:
            found.note("text", f"words after the call: {after.strip()[:40]!r}")
        calls.append(object_of(inside.strip()))
    return calls


def arguments_of(call: Fields, found: Found) -> Fields:
    """Return the arguments of a call of the tool."""
    arguments = call.get("arguments")
    if "action" in call and arguments is None:
        found.note("argument", f"the arguments are not within a call of {TOOL}")
        return call
    if isinstance(arguments, str):
        found.note("argument", "the arguments are a text, not an object")
        arguments = decoded(arguments)
    if not isinstance(arguments, dict):
        raise Unparsable(f"a call has no arguments: {str(call)[:80]}")
    if call.get("name") != TOOL:
        found.note("name", f"the tool is {TOOL}, not {str(call.get('name'))[:80]!r}")
    return arguments


class InterpretedToolCall:
    """Adds the action that the arguments of a call mean to those found."""

    def __init__(self, found: Found, arguments: Fields, coordinates: Coordinates) -> None:
        self.found = found
        self.arguments = arguments
        self.coordinates = coordinates

    def add(self) -> None:
        """Add it; raise :class:`Unparsable` if it lacks something."""
        name = text(self.arguments, "action")
        if name in LOOSE_NAMES:
            self.found.note("name", f"{name} is not an action of {TOOL}: read as {LOOSE_NAMES[name]}")
            name = LOOSE_NAMES[name]
        if name not in GRAMMAR:
            raise Unparsable(f"unknown action {name[:80]!r}: known are {', '.join(GRAMMAR)}")
        if unknown := sorted(self.arguments.keys() - KNOWN):
            self.found.note("argument", f"unknown arguments: {', '.join(unknown)[:80]}")
        GRAMMAR[name](self)

    def place(self, needed: bool = False) -> tuple[int, int, bool]:
        """Return the pixel of ``coordinate``, or the pointer's, and whether it is that."""
        written = self.arguments.get("coordinate")
        if written is None and not needed:
            return *self.found.pointer, True
        if not isinstance(written, list) or len(written) not in {2, 4}:
            raise Unparsable(f"coordinate is not a list of two numbers: {str(written)[:80]}", "place")
        numbers = [number({"coordinate": part}, "coordinate") for part in written]
        if len(numbers) == 4:
            self.found.note("place", "a box of four numbers: its centre is meant")
        return *self.found.place(numbers, self.coordinates), False

    def click(self, button: Button, count: int) -> None:
        """Add a click."""
        x, y, at_pointer = self.place()
        self.found.add(Click(x, y, button, count), at_pointer)

    def move(self) -> None:
        """Add a move."""
        x, y, _ = self.place(needed=True)
        self.found.add(Move(x, y))

    def drag(self) -> None:
        """Add a drag from where the pointer is."""
        start = self.found.pointer
        x, y, _ = self.place(needed=True)
        self.found.add(Drag(*start, x, y), at_pointer=True)

    def scroll(self, up: Direction, down: Direction) -> None:
        """Add a turn of the wheel; up and right are positive."""
        pixels = number(self.arguments, "pixels")
        x, y, at_pointer = self.place()
        self.found.add(Scroll(x, y, up if pixels > 0 else down, self.found.amount(pixels)), at_pointer)

    def terminate(self) -> None:
        """Add the end: success or failure."""
        status = self.arguments.get("status")
        if status not in ("success", "failure"):
            self.found.note("argument", f"status is success or failure, not {str(status)[:80]!r}")
        self.found.add(CallUser() if status == "failure" else Finished())


Build = Callable[[InterpretedToolCall], None]


def clicks(button: Button, count: int) -> Build:
    """Return how a named kind of click is added."""
    return lambda call: call.click(button, count)


GRAMMAR: dict[str, Build] = {
    "key": lambda call: call.found.add(Hotkey(keys(call.arguments, "keys", call.found))),
    "type": lambda call: call.found.add(Type(text(call.arguments, "text"))),
    "mouse_move": InterpretedToolCall.move,
    **{name: clicks(*kind) for name, kind in CLICKS.items()},
    "left_click_drag": InterpretedToolCall.drag,
    "scroll": lambda call: call.scroll("up", "down"),
    "hscroll": lambda call: call.scroll("right", "left"),
    "wait": lambda call: call.found.add(Wait()),
    "terminate": InterpretedToolCall.terminate,
    "answer": lambda call: call.found.add(Finished(text(call.arguments, "text"))),
}
CLICK_NAMES = {kind: name for name, kind in CLICKS.items()}
