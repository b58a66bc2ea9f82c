"""OSWorld's action space ``computer_13``: one JSON object an action, or the words WAIT, DONE and FAIL.

Actions without coordinates happen at the pointer. ``dy`` scrolls up and ``dx`` right, in notches of the wheel.
"""

import json
import re
from collections.abc import Callable, Sequence

from dart_streams.actions import typed
from dart_streams.actions.dialects import json_reader
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
    key_field,
    keys_field,
    loose_objects,
    objects_of,
    optional_number_field,
    place_elsewhere,
    place_numbers,
    read_values,
    split_key_name,
    text_field,
)
from dart_streams.actions.grammar import BUTTONS, MOST_CLICKS, Unparsable, parse_word
from dart_streams.actions.offered import list_calls
from topics.values import OfferedCall

SYSTEM = """You use a computer to carry out an instruction. At each step you see the screen as it is, of {width} by \
{height}, and answer with the next action: one JSON object in a code block, after a short thought if you like.

```json
{{"action_type": "CLICK", "x": 100, "y": 200}}
```

These are the actions, with their parameters; those in brackets may be left out. x and y are counted from the top left \
corner; without them an action is where the pointer is.

- MOVE_TO: x, y
- CLICK: [button: "left", "right" or "middle"], [x, y], [num_clicks: 1, 2 or 3]
- RIGHT_CLICK: [x, y]
- DOUBLE_CLICK: [x, y]
- MOUSE_DOWN: [button]
- MOUSE_UP: [button]
- DRAG_TO: x, y
- SCROLL: dx, dy (notches of the wheel; positive to the right and up)
- TYPING: text
- PRESS: key
- KEY_DOWN: key
- KEY_UP: key
- HOTKEY: keys (a list, pressed together)
- WAIT: nothing; look again a little later
- DONE: nothing; the task is done
- FAIL: nothing; the task can not be done"""
OFFERED = "- CALL: name, arguments (an object); calls one of these functions:"
WORDS = {"WAIT": typed.Wait, "DONE": typed.Finished, "FAIL": typed.CallUser}
FENCE = re.compile(r"```(?:(?:json)?\s*+(?P<word>WAIT|DONE|FAIL)\s*+```|(?P<kind>[A-Za-z0-9_+-]*+)(?P<blank>\s*+))")
"""The start of a code block, or a whole block that holds a word."""
ENDS = re.compile(r"(?P<more>[\s}]*+)(?:(?P<closed>```)|(?=[,;]?\s*+(?P<next>\{))|\Z)")
"""Text that may follow an object in a code block."""


class Computer13(Dialect, frozen=True, kw_only=True):
    """Dialect ``computer_13``."""

    def _add_actions(self, answer: str, builder: AnswerBuilder) -> None:
        for item in read_items(answer, builder):
            if isinstance(item, str):
                builder.add(WORDS[item]())
            elif builder.offered and item.get("action_type") == "CALL":
                builder.add(function_call(item))
            else:
                InterpretedObject(builder, item).add()

    def write(self, action: typed.Action, view: View) -> str:
        """Return the answer for ``action``; drags, scrolls and held buttons begin with a move."""
        fields = self._said(action, view)
        return "\n".join(f"```json\n{json.dumps(item, ensure_ascii=False)}\n```" for item in fields)

    def _said(self, action: typed.Action, view: View) -> list[Fields]:
        def at(kind: str, x: int, y: int, **others: str | int) -> Fields:
            x, y = written_place(x, y, view, self.coordinates)
            return {"action_type": kind, "x": x, "y": y, **others}

        match action:
            case typed.Click(x, y, button, count):
                return [at("CLICK", x, y, button=button, num_clicks=count)]
            case typed.Move(x, y):
                return [at("MOVE_TO", x, y)]
            case typed.Drag(x, y, to_x, to_y, "left"):
                return [at("MOVE_TO", x, y), at("DRAG_TO", to_x, to_y)]
            case typed.MouseDown(x, y, button):
                return [at("MOVE_TO", x, y), {"action_type": "MOUSE_DOWN", "button": button}]
            case typed.MouseUp(x, y, button):
                return [at("MOVE_TO", x, y), {"action_type": "MOUSE_UP", "button": button}]
            case typed.Scroll(x, y, direction):
                upright, notches = direction in {"up", "down"}, signed_notches(action)
                turn = {"dx": 0 if upright else notches, "dy": notches if upright else 0}
                return [at("MOVE_TO", x, y), {"action_type": "SCROLL", **turn}]
            case _:
                return [keyboard_fields(action)]

    def system_messages(
        self, instruction: str, view: View, offered: Sequence[OfferedCall] = ()
    ) -> tuple[tuple[Role, str], ...]:
        """Return the prompt's messages before the first screen, as (role, text)."""
        width, height = written_size(view, self.coordinates)
        system = SYSTEM.format(width=width, height=height)
        return ("system", f"{system}\n{OFFERED}\n{list_calls(offered)}" if offered else system), ("user", instruction)


def keyboard_fields(action: typed.Action) -> Fields:
    """Return the object of an action without coordinates."""
    match action:
        case typed.Hotkey((key,)):
            return {"action_type": "PRESS", "key": key}
        case typed.Hotkey(names):
            return {"action_type": "HOTKEY", "keys": list(names)}
        case typed.KeyDown(key):
            return {"action_type": "KEY_DOWN", "key": key}
        case typed.KeyUp(key):
            return {"action_type": "KEY_UP", "key": key}
        case typed.Type(content):
            return {"action_type": "TYPING", "text": content}
        case typed.Wait():
            return {"action_type": "WAIT"}
        case typed.Finished(""):
            return {"action_type": "DONE"}
        case typed.CallUser():
            return {"action_type": "FAIL"}
        case typed.Call(name, arguments):
            return {"action_type": "CALL", "name": name, "arguments": arguments}
    raise UnsupportedAction(f"computer_13 has no action for {action}")


def read_items(answer: str, builder: AnswerBuilder) -> list[Fields | str]:
    """Return the actions of an answer, as objects or words; raise :class:`Unparsable` if there is none."""
    plain = answer.strip()
    if (visible := plain.strip(json_reader.INVISIBLE)) != plain:
        builder.note("text", "characters without a width")
        plain = visible
    if plain in WORDS:
        return [plain]
    listed: list[Fields | str] = []
    end = 0
    while fence := FENCE.search(answer, end):
        block, end = read_block(answer, fence, builder)
        listed += block
    if listed:
        if answer[end:].strip():
            builder.note("text", "words after the action")
        return listed
    if not (plain.startswith("{") and plain.endswith("}")):
        builder.note("marker", "the action is not in a code block")
    return list(loose_objects(plain, builder))


def read_block(answer: str, fence: re.Match[str], builder: AnswerBuilder) -> tuple[list[Fields | str], int]:
    """Return the actions in a code block, words or objects, and the offset after it."""
    if fence["word"]:
        return [fence["word"]], fence.end()
    begin = fence.end()
    if answer[begin : begin + 1] not in {"{", "[", "\uff5b"}:
        builder.note("text", "a code block without an action")
        closing = answer.find("```", begin)
        return [], len(answer) if closing < 0 else closing + 3
    if fence["kind"] not in {"", "json"} or "\n" not in fence["blank"]:
        builder.note("marker", "the code block does not begin with a line ```json")
    listed: list[Fields | str] = []
    for value, ends in read_values(answer, begin, ENDS, builder):
        listed += objects_of(value)
        end, closed = ends.end(), ends["closed"]
    if not closed:
        builder.note("cut", "the code block is not closed")
    return listed, end


class InterpretedObject:
    """Converts an object to an action of the answer."""

    def __init__(self, builder: AnswerBuilder, item: Fields) -> None:
        self.builder = builder
        self.name = text_field(item, "action_type") if "action_type" in item else text_field(item, "action")
        if "action_type" not in item:
            builder.note("argument", "action_type is named action")
        inner = item.get("parameters")
        flat = {key: value for key, value in item.items() if key not in NAMES_OF_TYPE}
        self.fields: Fields = inner if isinstance(inner, dict) else flat

    def add(self) -> None:
        """Add the action; raise :class:`Unparsable` if a field is missing."""
        name = self.name
        if name not in GRAMMAR and name.upper() in GRAMMAR:
            self.builder.note("name", f"the action {name!r} is spelled {name.upper()!r}")
            name = name.upper()
        if name not in GRAMMAR:
            raise Unparsable(f"unknown action {name[:80]!r}: known are {', '.join(GRAMMAR)}")
        known, build = GRAMMAR[name]
        if unknown := sorted(self.fields.keys() - set(known)):
            self.builder.note("argument", f"{name} takes {list(known)}, not {', '.join(unknown)[:80]}")
        build(self)

    def place(self, needed: bool = False) -> tuple[int, int, bool]:
        """Return the pixel of ``x`` and ``y``, or the pointer's, and whether it is the pointer's."""
        x, y = (optional_number_field(self.fields, key, self.builder) for key in ("x", "y"))
        if x is None and y is None and (written := place_elsewhere(self.fields, KNOWN)) is not None:
            return *self.builder.place(place_numbers(written, self.builder)), False
        if x is None and y is None and not needed:
            return *self.builder.pointer, True
        if x is None or y is None:
            raise Unparsable(f"{self.name} lacks x or y")
        return *self.builder.place((x, y)), False

    def button(self) -> typed.Button:
        """Return the mouse button."""
        given = self.fields.get("button") is not None
        return parse_word(text_field(self.fields, "button"), "button", BUTTONS) if given else "left"

    def click(self, kind: typed.Button | None = None, count: int | None = None) -> None:
        """Add a click."""
        x, y, at_pointer = self.place()
        times = count or optional_number_field(self.fields, "num_clicks", self.builder) or 1
        if times not in range(1, MOST_CLICKS + 1):
            raise Unparsable(f"num_clicks is from 1 to {MOST_CLICKS}, not {times:g}")
        self.builder.add(typed.Click(x, y, kind or self.button(), int(times)), at_pointer)

    def held(self, action: type[typed.MouseDown] | type[typed.MouseUp]) -> None:
        """Add the press or release of a button."""
        x, y, at_pointer = self.place()
        self.builder.add(action(x, y, self.button()), at_pointer)

    def drag(self) -> None:
        """Add a drag from the pointer."""
        start = self.builder.pointer
        x, y, _ = self.place(needed=True)
        self.builder.add(typed.Drag(*start, x, y), at_pointer=True)

    def scroll(self) -> None:
        """Add a scroll, or one a direction."""
        turns: list[tuple[float, typed.Direction, typed.Direction]] = [
            (optional_number_field(self.fields, "dx", self.builder) or 0.0, "right", "left"),
            (optional_number_field(self.fields, "dy", self.builder) or 0.0, "up", "down"),
        ]
        chosen = [turn for turn in turns if turn[0]]
        if not chosen:
            raise Unparsable("a scroll by nothing: give dx or dy", "amount")
        for notches, positive, negative in chosen:
            x, y = self.builder.pointer
            direction = positive if notches > 0 else negative
            self.builder.add(typed.Scroll(x, y, direction, self.builder.amount(notches)), at_pointer=True)

    def key(self, action: type[typed.KeyDown] | type[typed.KeyUp]) -> None:
        """Add the press or release of a key."""
        self.builder.add(action(key_field(self.fields, "key", self.builder)))

    def press(self) -> None:
        """Add a key press; keys of a combination are pressed together."""
        self.builder.add(typed.Hotkey(split_key_name(text_field(self.fields, "key"), self.builder)))


NAMES_OF_TYPE = {"action_type", "action"}
KNOWN = frozenset({"x", "y", "button", "num_clicks", "dx", "dy", "text", "key", "keys"})
Build = Callable[[InterpretedObject], None]

GRAMMAR: dict[str, tuple[tuple[str, ...], Build]] = {
    "MOVE_TO": (("x", "y"), lambda item: item.builder.add(typed.Move(*item.place(needed=True)[:2]))),
    "CLICK": (("button", "x", "y", "num_clicks"), InterpretedObject.click),
    "MOUSE_DOWN": (("button",), lambda item: item.held(typed.MouseDown)),
    "MOUSE_UP": (("button",), lambda item: item.held(typed.MouseUp)),
    "RIGHT_CLICK": (("x", "y"), lambda item: item.click("right", 1)),
    "DOUBLE_CLICK": (("x", "y"), lambda item: item.click("left", 2)),
    "DRAG_TO": (("x", "y"), InterpretedObject.drag),
    "SCROLL": (("dx", "dy"), InterpretedObject.scroll),
    "TYPING": (("text",), lambda item: item.builder.add(typed.Type(text_field(item.fields, "text")))),
    "PRESS": (("key",), InterpretedObject.press),
    "KEY_DOWN": (("key",), lambda item: item.key(typed.KeyDown)),
    "KEY_UP": (("key",), lambda item: item.key(typed.KeyUp)),
    "HOTKEY": (("keys",), lambda item: item.builder.add(typed.Hotkey(keys_field(item.fields, "keys", item.builder)))),
    "WAIT": ((), lambda item: item.builder.add(typed.Wait())),
    "DONE": ((), lambda item: item.builder.add(typed.Finished())),
    "FAIL": ((), lambda item: item.builder.add(typed.CallUser())),
}
"""Parameters and builder of each action."""
