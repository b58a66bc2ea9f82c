"""The dialect of OSWorld's action space ``computer_13``: one JSON object an action, or the words WAIT, DONE and FAIL.

An action without a place is where the pointer is. A scroll's ``dy`` is positive upwards and its ``dx`` to the right, in
notches of the wheel.
"""

import re
from collections.abc import Callable

from dart_streams.actions.dialects import json_reader
from dart_streams.actions.dialects.computer_13_prompt import SYSTEM
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
    key_field,
    keys_field,
    loose_objects,
    objects_of,
    optional_number_field,
    place_elsewhere,
    place_numbers,
    split_key_name,
    text_field,
)
from dart_streams.actions.grammar import MOST_CLICKS, Unparsable, parse_button
from dart_streams.actions.typed import (
    Action,
    Button,
    CallUser,
    Click,
    Direction,
    Drag,
    Finished,
    Hotkey,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Scroll,
    Type,
    Wait,
)

WORDS: dict[str, type[Wait] | type[Finished] | type[CallUser]] = {"WAIT": Wait, "DONE": Finished, "FAIL": CallUser}
FENCE = re.compile(r"```(?:(?:json)?\s*+(?P<word>WAIT|DONE|FAIL)\s*+```|(?P<kind>[A-Za-z0-9_+-]*+)(?P<blank>\s*+))")
"""The beginning of a code block, or the whole of one that holds a word."""
ENDS = re.compile(r"(?P<more>[\s}]*+)(?:(?P<closed>```)|(?=[,;]?\s*+(?P<next>\{))|\Z)")
"""What may follow an object in a code block."""


class Computer13(JsonDialect, frozen=True, kw_only=True):
    """Answers in OSWorld's ``computer_13``."""

    def read(self, answer: str, view: View) -> ParsedAnswer:
        """Read an answer; raise :class:`Unparsable` if it says no action, or has something wrong and may not."""
        found = AnswerBuilder(view)
        for item in read_items(answer, found):
            if isinstance(item, str):
                found.add(WORDS[item]())
            else:
                InterpretedObject(found, item, self.coordinates).add()
        return found.reading(self.strictness, self.several)

    def write(self, action: Action, view: View) -> str:
        """Return the answer that says ``action``; a drag, a scroll and a held button begin with a move to there."""
        fields = self._said(action, view)
        return "\n".join(f"```json\n{encode_spaced(item)}\n```" for item in fields)

    def _said(self, action: Action, view: View) -> list[Fields]:
        def at(kind: str, x: int, y: int, **others: str | int) -> Fields:
            x, y = written_place(x, y, view, self.coordinates)
            return {"action_type": kind, "x": x, "y": y, **others}

        match action:
            case Click(x, y, button, count):
                return [at("CLICK", x, y, button=button, num_clicks=count)]
            case Move(x, y):
                return [at("MOVE_TO", x, y)]
            case Drag(x, y, to_x, to_y, "left"):
                return [at("MOVE_TO", x, y), at("DRAG_TO", to_x, to_y)]
            case MouseDown(x, y, button):
                return [at("MOVE_TO", x, y), {"action_type": "MOUSE_DOWN", "button": button}]
            case MouseUp(x, y, button):
                return [at("MOVE_TO", x, y), {"action_type": "MOUSE_UP", "button": button}]
            case Scroll(x, y, direction):
                upright, notches = direction in {"up", "down"}, signed_notches(action)
                turn = {"dx": 0 if upright else notches, "dy": notches if upright else 0}
                return [at("MOVE_TO", x, y), {"action_type": "SCROLL", **turn}]
            case _:
                return [keyboard_fields(action)]

    def system_messages(self, instruction: str, view: View) -> tuple[tuple[Role, str], ...]:
        """Return the texts of the prompt before the first screen."""
        width, height = written_size(view, self.coordinates)
        return ("system", SYSTEM.format(width=width, height=height)), ("user", instruction)


def keyboard_fields(action: Action) -> Fields:
    """Return an action that has no place."""
    match action:
        case Hotkey((key,)):
            return {"action_type": "PRESS", "key": key}
        case Hotkey(names):
            return {"action_type": "HOTKEY", "keys": list(names)}
        case KeyDown(key):
            return {"action_type": "KEY_DOWN", "key": key}
        case KeyUp(key):
            return {"action_type": "KEY_UP", "key": key}
        case Type(content):
            return {"action_type": "TYPING", "text": content}
        case Wait():
            return {"action_type": "WAIT"}
        case Finished(""):
            return {"action_type": "DONE"}
        case CallUser():
            return {"action_type": "FAIL"}
    raise UnsupportedAction(f"computer_13 has no action for {action}")


def read_items(answer: str, found: AnswerBuilder) -> list[Fields | str]:
    """Return the actions of an answer, as objects or words; raise :class:`Unparsable` if there is none."""
    plain = answer.strip()
    if (visible := plain.strip(json_reader.INVISIBLE)) != plain:
        found.note("text", "characters without a width")
        plain = visible
    if plain in WORDS:
        return [plain]
    listed: list[Fields | str] = []
    end = 0
    while fence := FENCE.search(answer, end):
        block, end = read_block(answer, fence, found)
        listed += block
    if listed:
        if answer[end:].strip():
            found.note("text", "words after the action")
        return listed
    if not (plain.startswith("{") and plain.endswith("}")):
        found.note("marker", "the action is not in a code block")
    return list(loose_objects(plain, found))


def read_block(answer: str, fence: re.Match[str], found: AnswerBuilder) -> tuple[list[Fields | str], int]:
    """Return the actions in a code block, words or objects, and where the text after it begins."""
    if fence["word"]:
        return [fence["word"]], fence.end()
    begin = fence.end()
    if answer[begin : begin + 1] not in {"{", "[", "\uff5b"}:
        found.note("text", "a code block without an action")
        closing = answer.find("```", begin)
        return [], len(answer) if closing < 0 else closing + 3
    if fence["kind"] not in {"", "json"} or "\n" not in fence["blank"]:
        found.note("marker", "the code block does not begin with a line ```json")
    listed: list[Fields | str] = []
    while True:
        value, after, wrong = json_reader.read(answer, begin, lambda place: ENDS.match(answer, place) is not None)
        found.wrong += wrong
        listed += objects_of(value)
        ends = ENDS.match(answer, after)
        assert ends is not None
        if "}" in ends["more"]:
            found.note("json", "a brace too many")
        if ends["next"] is None:
            if not ends["closed"]:
                found.note("cut", "the code block is not closed")
            return listed, ends.end()
        begin = ends.start("next")


class InterpretedObject:
    """Adds the action that an object means to those found."""

    def __init__(self, found: AnswerBuilder, item: Fields, coordinates: Coordinates) -> None:
        self.found = found
        self.coordinates = coordinates
        self.name = text_field(item, "action_type") if "action_type" in item else text_field(item, "action")
        if "action_type" not in item:
            found.note("argument", "action_type is named action")
        inner = item.get("parameters")
        flat = {key: value for key, value in item.items() if key not in NAMES_OF_TYPE}
        self.fields: Fields = inner if isinstance(inner, dict) else flat

    def add(self) -> None:
        """Add it; raise :class:`Unparsable` if it lacks something."""
        name = self.name
        if name not in GRAMMAR and name.upper() in GRAMMAR:
            self.found.note("name", f"the action {name!r} is spelled {name.upper()!r}")
            name = name.upper()
        if name not in GRAMMAR:
            raise Unparsable(f"unknown action {name[:80]!r}: known are {', '.join(GRAMMAR)}")
        known, build = GRAMMAR[name]
        if unknown := sorted(self.fields.keys() - set(known)):
            self.found.note("argument", f"{name} takes {list(known)}, not {', '.join(unknown)[:80]}")
        build(self)

    def place(self, needed: bool = False) -> tuple[int, int, bool]:
        """Return the pixel of ``x`` and ``y``, or the pointer's, and whether it is that."""
        x, y = optional_number_field(self.fields, "x", self.found), optional_number_field(self.fields, "y", self.found)
        if x is None and y is None and (written := place_elsewhere(self.fields, KNOWN)) is not None:
            return *self.found.place(place_numbers(written, self.found), self.coordinates), False
        if x is None and y is None and not needed:
            return *self.found.pointer, True
        if x is None or y is None:
            raise Unparsable(f"{self.name} lacks x or y")
        return *self.found.place((x, y), self.coordinates), False

    def button(self) -> Button:
        """Return the mouse button."""
        return parse_button(text_field(self.fields, "button")) if self.fields.get("button") is not None else "left"

    def click(self, kind: Button | None = None, count: int | None = None) -> None:
        """Add a click."""
        x, y, at_pointer = self.place()
        times = count or optional_number_field(self.fields, "num_clicks", self.found) or 1
        if times not in range(1, MOST_CLICKS + 1):
            raise Unparsable(f"num_clicks is from 1 to {MOST_CLICKS}, not {times:g}")
        self.found.add(Click(x, y, kind or self.button(), int(times)), at_pointer)

    def held(self, action: type[MouseDown] | type[MouseUp]) -> None:
        """Add a button that is held, or released."""
        x, y, at_pointer = self.place()
        self.found.add(action(x, y, self.button()), at_pointer)

    def move(self) -> None:
        """Add a move."""
        x, y, _ = self.place(needed=True)
        self.found.add(Move(x, y))

    def drag(self) -> None:
        """Add a drag from where the pointer is."""
        start = self.found.pointer
        x, y, _ = self.place(needed=True)
        self.found.add(Drag(*start, x, y), at_pointer=True)

    def scroll(self) -> None:
        """Add a turn of the wheel, or one in each direction."""
        turns: list[tuple[float, Direction, Direction]] = [
            (optional_number_field(self.fields, "dx", self.found) or 0.0, "right", "left"),
            (optional_number_field(self.fields, "dy", self.found) or 0.0, "up", "down"),
        ]
        chosen = [turn for turn in turns if turn[0]]
        if not chosen:
            raise Unparsable("a scroll by nothing: give dx or dy", "amount")
        for notches, positive, negative in chosen:
            x, y = self.found.pointer
            direction = positive if notches > 0 else negative
            self.found.add(Scroll(x, y, direction, self.found.amount(notches)), at_pointer=True)

    def key(self, action: type[KeyDown] | type[KeyUp]) -> None:
        """Add a key that is held, or released."""
        self.found.add(action(key_field(self.fields, "key", self.found)))

    def press(self) -> None:
        """Add a key that is pressed; keys of a combination are pressed together."""
        self.found.add(Hotkey(split_key_name(text_field(self.fields, "key"), self.found)))


NAMES_OF_TYPE = {"action_type", "action"}
KNOWN = frozenset({"x", "y", "button", "num_clicks", "dx", "dy", "text", "key", "keys"})
"""All parameters."""
Build = Callable[[InterpretedObject], None]

GRAMMAR: dict[str, tuple[tuple[str, ...], Build]] = {
    "MOVE_TO": (("x", "y"), InterpretedObject.move),
    "CLICK": (("button", "x", "y", "num_clicks"), InterpretedObject.click),
    "MOUSE_DOWN": (("button",), lambda item: item.held(MouseDown)),
    "MOUSE_UP": (("button",), lambda item: item.held(MouseUp)),
    "RIGHT_CLICK": (("x", "y"), lambda item: item.click("right", 1)),
    "DOUBLE_CLICK": (("x", "y"), lambda item: item.click("left", 2)),
    "DRAG_TO": (("x", "y"), InterpretedObject.drag),
    "SCROLL": (("dx", "dy"), InterpretedObject.scroll),
    "TYPING": (("text",), lambda item: item.found.add(Type(text_field(item.fields, "text")))),
    "PRESS": (("key",), InterpretedObject.press),
    "KEY_DOWN": (("key",), lambda item: item.key(KeyDown)),
    "KEY_UP": (("key",), lambda item: item.key(KeyUp)),
    "HOTKEY": (("keys",), lambda item: item.found.add(Hotkey(keys_field(item.fields, "keys", item.found)))),
    "WAIT": ((), lambda item: item.found.add(Wait())),
    "DONE": ((), lambda item: item.found.add(Finished())),
    "FAIL": ((), lambda item: item.found.add(CallUser())),
}
"""Each action: its parameters, and how it is made."""
