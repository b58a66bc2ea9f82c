"""The dialect of the UI-TARS models: ``Thought: …`` and then ``Action: click(start_box='(x,y)')``, as they write it.

UI-TARS-1.5 writes pixels of the image that it sees, earlier ones write 0 to 1000. ``press`` and ``release`` hold keys.
For what these models have no word the words are those of :mod:`dart_streams.actions.grammar`.
"""

import re
from collections.abc import Callable
from typing import Literal

import msgspec

from dart_streams.actions import grammar, keys
from dart_streams.actions.dialects import ui_tars_prompts
from dart_streams.actions.dialects.calls import Call, Parameters, Scanner
from dart_streams.actions.dialects.dialect import (
    FULL_WIDTH,
    TAGS,
    AnswerBuilder,
    Coordinates,
    MultipleActions,
    ParsedAnswer,
    Place,
    Role,
    Strictness,
    View,
    split_keys,
    written_numbers,
    written_place,
)
from dart_streams.actions.grammar import Unparsable
from dart_streams.actions.typed import (
    Action,
    Button,
    CallUser,
    Click,
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

Style = Literal["point", "box"]

BOX_TOKENS = ("<|box_start|>", "<|box_end|>")
PLAIN_BOX = re.compile(r"\b(start_box|end_box)='(\([0-9]{1,5},\s?[0-9]{1,5}\))'")
BOX_NAMES = {"point": "start_box", "start_point": "start_box", "end_point": "end_box", "hotkey": "key"}
"""Other names of parameters."""


class UiTars(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of UI-TARS. ``style`` is that of the prompt, in which places are to be written; both are always read."""

    coordinates: Coordinates = "absolute"
    strictness: Strictness = "strict"
    several: MultipleActions = "first"
    style: Style = "point"
    language: str = "English"
    tokens: tuple[str, ...] = BOX_TOKENS
    separate: bool = True

    def read(self, answer: str, view: View) -> ParsedAnswer:
        """Read an answer; raise :class:`Unparsable` if it says no action, or has something wrong and may not."""
        found = AnswerBuilder(view)
        for call in Scanner(answer, PARAMETERS, GRAMMAR, ("content",), found.note).calls():
            InterpretedCall(found, call, self.coordinates).add()
        return found.reading(self.strictness, self.several)

    def write(self, action: Action, view: View) -> str:
        """Return the answer that says ``action``, without a thought."""
        changed = {
            names: written_place(getattr(action, names[0]), getattr(action, names[1]), view, self.coordinates)
            for names in (("x", "y"), ("to_x", "to_y"))
            if hasattr(action, names[0])
        }
        placed = {name: value for names, place in changed.items() for name, value in zip(names, place, strict=True)}
        text = grammar.format(msgspec.structs.replace(action, **placed) if placed else action)
        return self.history_text(text) if self.style == "box" else in_points(text)

    def system_messages(self, instruction: str, view: View) -> tuple[tuple[Role, str], ...]:
        """Return the texts of the prompt before the first screen, as published for UI-TARS-1.5."""
        return ("system", ui_tars_prompts.SYSTEM), (
            "user",
            ui_tars_prompts.user_prompt(self.style, self.language, instruction),
        )

    def history_text(self, answer: str) -> str:
        """Return an earlier answer with the tokens around its boxes, which decoding may have left out."""
        return PLAIN_BOX.sub(r"\1='<|box_start|>\2<|box_end|>'", answer) if self.style == "box" else answer


class InterpretedCall:
    """Adds the action that a call means to those found."""

    def __init__(self, found: AnswerBuilder, call: Call, coordinates: Coordinates) -> None:
        self.found = found
        self.call = call
        self.coordinates = coordinates
        self.arguments: dict[str, str] = {}

    def add(self) -> None:
        """Add it; raise :class:`Unparsable` if it lacks something."""
        name = self.call.name
        if name in LOOSE_NAMES:
            self.found.note("name", f"{name} is not a UI-TARS action: read as {LOOSE_NAMES[name]}")
            name = LOOSE_NAMES[name]
        parameters, required, build = GRAMMAR[NAMES.get(name, name)]
        for key, value in self.call.arguments.items():
            key = BOX_NAMES.get(key, key)
            if key not in parameters:
                self.found.note("argument", f"{name} takes {list(parameters)}, not {key!r}")
            elif value or key == "content":
                self.arguments[key] = value
        if "start_box" in parameters and "start_box" not in self.arguments and (place := self.place_elsewhere()):
            self.arguments["start_box"] = place
        if missing := [key for key in required if key not in self.arguments]:
            raise Unparsable(f"{name} lacks {', '.join(missing)}")
        self.found.add(build(self))

    def place_elsewhere(self) -> str:
        """Return the place that arguments of other names give, as x and y or in one; empty if none does."""
        given = self.call.arguments
        if {"x", "y"} <= given.keys():
            return f"({given['x']},{given['y']})"
        places = [value for key, value in given.items() if key not in self.arguments and written_numbers(value)]
        return places[0] if len(places) == 1 else ""

    def text(self, key: str) -> str:
        """Return an argument; empty if it is not given."""
        return self.arguments.get(key, "")

    def place(self, key: str = "start_box") -> Place:
        """Return the pixel of a place, the center of a box; where the pointer is if it is not given."""
        if key not in self.arguments:
            return self.found.pointer
        written = self.arguments[key]
        numbers = written_numbers(written)
        if numbers is None:
            raise Unparsable(f"not a place like (x,y) or <point>x y</point>: {written[:80]!r}", "place")
        tagged = TAGS.search(written) is not None
        if (
            written.count("<point>") != written.count("</point>")
            or not (tagged or "," in written)
            or (written != written.translate(FULL_WIDTH))
        ):
            self.found.note("place", f"not quite a place: {written[:80]!r}")
        return self.found.place(numbers, self.coordinates)

    def button(self) -> Button:
        """Return the mouse button."""
        return grammar.parse_button(self.text("button") or "left")

    def keys(self) -> tuple[str, ...]:
        """Return the keys of a combination: ``ctrl c`` and ``ctrl+c``."""
        names = split_keys(self.text("key"))
        if len(names) == 1 and "-" in names[0][1:-1] and (apart := split_hyphens(names[0])):
            self.found.note("key", f"keys of a combination are apart by a space: {names[0][:80]!r}")
            return apart
        return names

    def hotkey(self) -> Action:
        """Return the combination."""
        return Hotkey(self.keys())

    def held(self, action: type[KeyDown] | type[KeyUp]) -> Action:
        """Return a key that is held, or released; of several at once, a combination."""
        names = self.keys()
        if len(names) == 1:
            return action(names[0])
        self.found.note("key", f"{self.call.name} takes one key: {self.text('key')[:80]!r}")
        return Hotkey(names)

    def clicked(self, button: Button, count: int) -> Action:
        """Return a click of a kind."""
        return Click(*self.place(), button, count)

    def click(self) -> Action:
        """Return a click of the kind that its arguments say."""
        return self.clicked(self.button(), grammar.parse_number(self.text("count") or "1", grammar.MOST_CLICKS))

    def scroll(self) -> Action:
        """Return a turn of the wheel."""
        written = self.text("amount")
        amount = None if not written else self.found.amount(grammar.parse_number(written, 9999))
        return Scroll(*self.place(), grammar.parse_direction(self.text("direction")), amount)


def split_hyphens(name: str) -> tuple[str, ...] | None:
    """Return the keys of ``ctrl-c``; None of a name that only has a hyphen in it."""
    parts = tuple(part for part in name.split("-") if part)
    known = keys.canonical_name(name) in keys.NAMED or keys.canonical_name(parts[0]) not in keys.MODIFIERS
    return None if known else parts


def in_points(text: str) -> str:
    """Return a canonical answer with its boxes as ``<point>x y</point>``."""
    name = "point" if "end_box=" not in text else "start_point"
    for box, point in (("start_box", name), ("end_box", "end_point")):
        text = re.sub(rf"\b{box}='\((-?\d+),(-?\d+)\)'", rf"{point}='<point>\1 \2</point>'", text, count=1)
    return text


Build = Callable[[InterpretedCall], Action]

GRAMMAR: dict[str, tuple[Parameters, Parameters, Build]] = {
    "click": (("start_box", "button", "count"), ("start_box",), InterpretedCall.click),
    "left_double": (("start_box",), ("start_box",), lambda call: call.clicked("left", 2)),
    "left_triple": (("start_box",), ("start_box",), lambda call: call.clicked("left", 3)),
    "right_single": (("start_box",), ("start_box",), lambda call: call.clicked("right", 1)),
    "middle_single": (("start_box",), ("start_box",), lambda call: call.clicked("middle", 1)),
    "move": (("start_box",), ("start_box",), lambda call: Move(*call.place())),
    "drag": (
        ("start_box", "end_box", "button"),
        ("start_box", "end_box"),
        lambda call: Drag(*call.place(), *call.place("end_box"), call.button()),
    ),
    "mouse_down": (("start_box", "button"), (), lambda call: MouseDown(*call.place(), call.button())),
    "mouse_up": (("start_box", "button"), (), lambda call: MouseUp(*call.place(), call.button())),
    "scroll": (("start_box", "direction", "amount"), ("direction",), InterpretedCall.scroll),
    "hotkey": (("key",), ("key",), InterpretedCall.hotkey),
    "press": (("key",), ("key",), lambda call: call.held(KeyDown)),
    "release": (("key",), ("key",), lambda call: call.held(KeyUp)),
    "type": (("content",), ("content",), lambda call: Type(call.text("content"))),
    "wait": ((), (), lambda _: Wait()),
    "finished": (("content",), (), lambda call: Finished(call.text("content"))),
    "call_user": ((), (), lambda _: CallUser()),
}
"""Each action: its parameters, those that it needs, and how it is made. Without a place it is at the pointer."""
NAMES = {
    "left_single": "click",
    "hover": "move",
    "move_to": "move",
    "select": "drag",
    "keydown": "press",
    "keyup": "release",
    "error_env": "call_user",
}
"""Other names that these models' own parser knows."""
LOOSE_NAMES = {
    "left_click": "click",
    "double_click": "left_double",
    "left_double_click": "left_double",
    "triple_click": "left_triple",
    "right_click": "right_single",
    "middle_click": "middle_single",
    "mouse_move": "move",
    "key_down": "press",
    "key_up": "release",
    "key": "hotkey",
    "input": "type",
    "finish": "finished",
    "done": "finished",
    "fail": "call_user",
}
"""What these models are not to write, and what it means."""
MEANS = {name: name for name in GRAMMAR} | NAMES | LOOSE_NAMES
PARAMETERS = {
    name: GRAMMAR[meant][0] + tuple(other for other, key in BOX_NAMES.items() if key in GRAMMAR[meant][0])
    for name, meant in MEANS.items()
}
"""What is read: all names, with all names of their parameters."""
