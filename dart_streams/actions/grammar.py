"""The UI-TARS grammar of actions: printer and parser. Never eval, never exec.

Actions that UI-TARS models lack (moves, other buttons, more clicks, notches of the wheel) have the same form.
"""

import re
from collections.abc import Callable
from typing import TypeVar

from dart_streams.actions import typed
from dart_streams.actions.arguments import InvalidArguments, read_arguments, write_arguments

Point = tuple[int, int]
Word = TypeVar("Word", bound=str)
BUTTONS: tuple[typed.Button, ...] = ("left", "middle", "right")
DIRECTIONS: tuple[typed.Direction, ...] = ("up", "down", "left", "right")


class Unparsable(ValueError):
    """An answer without a valid action; ``kind`` classifies the error for counts."""

    def __init__(self, text: str, kind: str = "unreadable") -> None:
        super().__init__(text)
        self.kind = kind


def format(action: typed.Action) -> str:
    """Return the canonical answer, e.g. ``Action: click(start_box='(84,120)')``; :func:`parse` is its inverse."""
    return f"Action: {call(action)}"


def call(action: typed.Action) -> str:
    """Return an action as a function call of the grammar."""
    match action:
        case typed.Hotkey(keys):
            return write_call("hotkey", key=" ".join(keys))
        case typed.KeyDown(key):
            return write_call("press", key=key)
        case typed.KeyUp(key):
            return write_call("release", key=key)
        case typed.Type(content):
            return write_call("type", content=content)
        case typed.Finished(content):
            return write_call("finished", content=content)
        case typed.Call(name, arguments):
            return write_call(CALL_NAME, name=name, arguments=write_arguments(arguments))
        case typed.Wait():
            return "wait()"
        case typed.CallUser():
            return "call_user()"
        case _:
            return pointer_call(action)


def pointer_call(action: typed.Click | typed.Move | typed.Drag | typed.MouseDown | typed.MouseUp | typed.Scroll) -> str:
    """Return an action with coordinates as a function call of the grammar."""
    box = f"({action.x},{action.y})"
    match action:
        case typed.Click(_, _, button, count):
            name = CLICK_NAMES.get((button, count))
            return write_call(name, box) if name else write_call("click", box, button=button, count=count)
        case typed.Drag(_, _, to_x, to_y, button):
            return write_call("drag", box, end_box=f"({to_x},{to_y})", button=button)
        case typed.Move():
            return write_call("move", box)
        case typed.MouseDown(_, _, button):
            return write_call("mouse_down", box, button=button)
        case typed.MouseUp(_, _, button):
            return write_call("mouse_up", box, button=button)
        case typed.Scroll(_, _, direction, amount):
            return write_call("scroll", box, direction=direction, amount=amount)


def write_call(name: str, start_box: str | None = None, /, **others: str | int | None) -> str:
    """Return a call with quoted arguments, without those at their default."""
    arguments = {"start_box": start_box} | others
    given = {key: str(value) for key, value in arguments.items() if value is not None and value != DEFAULTS.get(key)}
    return f"{name}({', '.join(f'{key}={quote(value)}' for key, value in given.items())})"


def parse(answer: str) -> typed.Action:
    r"""Parse the only action of an answer: ``Thought: …\nAction: call(…)``, the thought being optional.

    Boxes may be wrapped in ``<|box_start|>…<|box_end|>``; a box of four numbers means its center. Raises
    :class:`Unparsable` unless there is exactly one valid action.
    """
    marker = MARKER.match(answer)
    if marker is None:
        raise Unparsable("the answer has no line that begins with 'Action:'")
    thought, text = marker["thought"], marker["call"]
    if thought.strip() and not thought.lstrip().startswith("Thought:"):
        raise Unparsable("only a 'Thought:' may stand before the action")
    name, arguments = split_call(text.strip())
    if name == CALL_NAME:
        return build_call(arguments)
    if name not in GRAMMAR:
        raise unknown_action(name)
    parameters, optional, build = GRAMMAR[name]
    unknown = arguments.keys() - set(parameters)
    missing = set(parameters) - arguments.keys() - set(optional)
    if unknown or missing:
        raise Unparsable(f"{name} takes {list(parameters)}, not {sorted(arguments)}")
    return build(CallArguments(arguments))


def unknown_action(name: str) -> Unparsable:
    """Return the error of an action that the grammar lacks."""
    return Unparsable(f"unknown action {name!r}: known are {', '.join(GRAMMAR)}")


def build_call(given: dict[str, str]) -> typed.Call:
    """Return the call of a function, given its name and its arguments as JSON text."""
    if "name" not in given or given.keys() - set(CALL_PARAMETERS):
        raise Unparsable(f"{CALL_NAME} takes {list(CALL_PARAMETERS)}, not {sorted(given)}", "call")
    try:
        return typed.Call(given["name"], read_arguments(given.get("arguments") or "{}"))
    except InvalidArguments as error:
        raise Unparsable(f"the arguments of {given['name'][:80]!r}: {error}", "call") from None


def split_call(text: str) -> tuple[str, dict[str, str]]:
    """Split ``name(key='value', …)`` into the name and the unescaped values."""
    head = CALL.fullmatch(text)
    if head is None:
        raise Unparsable(f"not a call like click(start_box='(x,y)'): {text[:80]!r}")
    written, begin = head["arguments"].strip(), 0
    arguments: dict[str, str] = {}
    while begin < len(written):
        argument = ARGUMENT.match(written, begin)
        if argument is None:
            raise Unparsable(f"not an argument like key='value': {written[begin : begin + 80]!r}")
        if argument["key"] in arguments:
            raise Unparsable(f"argument {argument['key']!r} is given twice")
        arguments[argument["key"]] = unquote(argument["single"] or argument["double"] or "")
        begin = argument.end()
        if argument["comma"] and begin == len(written):
            raise Unparsable("an argument is missing after the last comma")
        if begin < len(written) and not argument["comma"]:
            raise Unparsable(f"a comma is missing before {written[begin : begin + 80]!r}")
    return head["name"], arguments


def parse_point(box: str) -> Point:
    """Return the point of a box: ``(x,y)``, or the center of ``(x1,y1,x2,y2)``; square brackets are accepted."""
    match = BOX.fullmatch(box.strip().removeprefix("<|box_start|>").removesuffix("<|box_end|>"))
    if match is None:
        raise Unparsable(f"not a box like (x,y): {box[:80]!r}")
    numbers = [float(number) for number in match["numbers"].split(",")]
    if len(numbers) == 2:
        return round(numbers[0]), round(numbers[1])
    return round((numbers[0] + numbers[2]) / 2), round((numbers[1] + numbers[3]) / 2)


def parse_word(text: str, what: str, known: tuple[Word, ...]) -> Word:
    """Return the known word, or raise :class:`Unparsable`."""
    for word in known:
        if text.strip().lower() == word:
            return word
    raise Unparsable(f"unknown {what} {text[:80]!r}: known are {', '.join(known)}")


def parse_number(text: str, most: int) -> int:
    """Return a whole number from 1 to ``most``, or raise :class:`Unparsable`."""
    if WHOLE.fullmatch(text) is None or not 1 <= int(text) <= most:
        raise Unparsable(f"not a whole number from 1 to {most}: {text[:80]!r}")
    return int(text)


def quote(text: str) -> str:
    """Quote a text, escaping quotes, backslashes and control characters."""
    return "'" + "".join(ESCAPES.get(character, character) for character in text) + "'"


def unquote(text: str) -> str:
    """Undo :func:`quote` inside the quotes; unknown escapes stay."""
    return ESCAPED.sub(lambda match: UNESCAPES.get(match[0], match[0]), text)


CLICK_NAMES: dict[tuple[typed.Button, int], str] = {
    ("left", 1): "click",
    ("left", 2): "left_double",
    ("left", 3): "left_triple",
    ("right", 1): "right_single",
    ("middle", 1): "middle_single",
}
MOST_CLICKS, MOST_NOTCHES = 3, 100
CALL_NAME, CALL_PARAMETERS = "call", ("name", "arguments")
"""The action that calls a function; only answers of environments that offer functions may have it."""
DEFAULTS: dict[str, str | int] = {"button": "left", "count": 1}
MARKER = re.compile(r"(?P<thought>(?:.*\n)?)[ \t]*Action:(?P<call>.*)", re.DOTALL)
ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
UNESCAPES = {escaped: plain for plain, escaped in ESCAPES.items()} | {'\\"': '"'}
ESCAPED = re.compile(r"\\.", re.DOTALL)
CALL = re.compile(r"(?P<name>[a-z_]+)\((?P<arguments>.*)\)", re.DOTALL)
SINGLE, DOUBLE = (rf"[^{quote}\\]*+(?:\\.[^{quote}\\]*+)*" for quote in ("'", '"'))
ARGUMENT = re.compile(
    rf"(?P<key>[a-z_]+)\s*=\s*(?:'(?P<single>{SINGLE})'|\"(?P<double>{DOUBLE})\")\s*(?P<comma>,?)\s*", re.DOTALL
)
# ASCII only: of the other digits and spaces, float() refuses some.
NUMBER = r"\s*\d{1,5}(?:\.\d{1,6})?\s*"
BOX = re.compile(rf"[(\[](?P<numbers>{NUMBER},{NUMBER}(?:,{NUMBER},{NUMBER})?)[)\]]", re.ASCII)
WHOLE = re.compile(r"[0-9]{1,4}")


class CallArguments:
    """Reads the arguments of a call; a dialect may read them otherwise."""

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given

    def text(self, key: str) -> str:
        """Return an argument, empty if it is not given."""
        return self.given.get(key, "")

    def place(self, key: str = "start_box") -> Point:
        """Return the point of a box."""
        return parse_point(self.given[key])

    def button(self) -> typed.Button:
        """Return the mouse button."""
        return parse_word(self.given.get("button", "left"), "button", BUTTONS)

    def click(self) -> typed.Action:
        """Return the click that the arguments describe."""
        return typed.Click(*self.place(), self.button(), parse_number(self.given.get("count", "1"), MOST_CLICKS))

    def direction(self) -> typed.Direction:
        """Return the direction of a scroll."""
        return parse_word(self.given["direction"], "direction", DIRECTIONS)

    def amount(self) -> int | None:
        """Return the notches of a scroll."""
        return parse_number(self.given["amount"], MOST_NOTCHES) if "amount" in self.given else None

    def keys(self) -> tuple[str, ...]:
        """Return the keys of a combination."""
        pressed = tuple(self.given["key"].split())
        if not pressed:
            raise Unparsable("hotkey names no key")
        return pressed

    def held(self, action: type[typed.KeyDown] | type[typed.KeyUp]) -> typed.Action:
        """Return the press or release of a key."""
        pressed = self.keys()
        if len(pressed) > 1:
            raise Unparsable(f"more than one key: {self.given['key'][:80]!r}")
        return action(pressed[0])


def click_builder(button: typed.Button, count: int) -> Callable[[CallArguments], typed.Action]:
    """Return the builder of one kind of click."""
    return lambda call: typed.Click(*call.place(), button, count)


Parameters = tuple[str, ...]
Grammar = dict[str, tuple[Parameters, Parameters, Callable[[CallArguments], typed.Action]]]

GRAMMAR: Grammar = {
    "click": (("start_box", "button", "count"), ("button", "count"), lambda call: call.click()),
    **{name: (("start_box",), (), click_builder(*kind)) for kind, name in CLICK_NAMES.items() if name != "click"},
    "move": (("start_box",), (), lambda call: typed.Move(*call.place())),
    "drag": (
        ("start_box", "end_box", "button"),
        ("button",),
        lambda call: typed.Drag(*call.place(), *call.place("end_box"), call.button()),
    ),
    "mouse_down": (("start_box", "button"), ("button",), lambda call: typed.MouseDown(*call.place(), call.button())),
    "mouse_up": (("start_box", "button"), ("button",), lambda call: typed.MouseUp(*call.place(), call.button())),
    "scroll": (
        ("start_box", "direction", "amount"),
        ("amount",),
        lambda call: typed.Scroll(*call.place(), call.direction(), call.amount()),
    ),
    "hotkey": (("key",), (), lambda call: typed.Hotkey(call.keys())),
    "press": (("key",), (), lambda call: call.held(typed.KeyDown)),
    "release": (("key",), (), lambda call: call.held(typed.KeyUp)),
    "type": (("content",), (), lambda call: typed.Type(call.text("content"))),
    "wait": ((), (), lambda _: typed.Wait()),
    "finished": (("content",), ("content",), lambda call: typed.Finished(call.text("content"))),
    "call_user": ((), (), lambda _: typed.CallUser()),
}
"""Parameters, optional parameters and builder of each action."""
