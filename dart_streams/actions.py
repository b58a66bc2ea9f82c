"""The action space: typed actions, and the UI-TARS grammar's parser and printer. Never eval, never exec.

Coordinates are absolute pixels of the image the policy sees (after :func:`dart_streams.screens.smart_resize`).
"""

import re
from collections.abc import Callable
from typing import Literal

import msgspec


class Click(msgspec.Struct, frozen=True):
    """``click(start_box='(x,y)')``: a left click."""

    x: int
    y: int


class DoubleClick(msgspec.Struct, frozen=True):
    """``left_double(start_box='(x,y)')``."""

    x: int
    y: int


class RightClick(msgspec.Struct, frozen=True):
    """``right_single(start_box='(x,y)')``."""

    x: int
    y: int


class Drag(msgspec.Struct, frozen=True):
    """``drag(start_box='(x,y)', end_box='(x,y)')``."""

    x: int
    y: int
    to_x: int
    to_y: int


class Hotkey(msgspec.Struct, frozen=True):
    """``hotkey(key='ctrl c')``: keys pressed together, in order."""

    keys: tuple[str, ...]


class Type(msgspec.Struct, frozen=True):
    r"""``type(content='text')``: a trailing ``\n`` presses Enter."""

    content: str


class Scroll(msgspec.Struct, frozen=True):
    """``scroll(start_box='(x,y)', direction='down')``."""

    x: int
    y: int
    direction: Literal["up", "down", "left", "right"]


class Wait(msgspec.Struct, frozen=True):
    """``wait()``: look again a little later."""


class Finished(msgspec.Struct, frozen=True):
    """``finished(content='…')``: the policy says that the task is done."""

    content: str = ""


class CallUser(msgspec.Struct, frozen=True):
    """``call_user()``: the policy gives up."""


Action = Click | DoubleClick | RightClick | Drag | Hotkey | Type | Scroll | Wait | Finished | CallUser

Point = tuple[int, int]

LONGEST_ANSWER = 10_000
"""Characters of an answer that are looked at; longer ones are refused."""


class Unparsable(ValueError):
    """An answer that is not one action of the grammar; the text says what was wrong."""


def format(action: Action) -> str:
    """Return the canonical answer, for instance ``Action: click(start_box='(84,120)')``; ``parse`` is its inverse."""
    return f"Action: {call(action)}"


def call(action: Action) -> str:
    """Return an action as the grammar's function call."""
    match action:
        case Click(x, y) | DoubleClick(x, y) | RightClick(x, y):
            return f"{CLICKS[type(action)]}(start_box='({x},{y})')"
        case Drag(x, y, to_x, to_y):
            return f"drag(start_box='({x},{y})', end_box='({to_x},{to_y})')"
        case Hotkey(keys):
            return f"hotkey(key={quote(' '.join(keys))})"
        case Type(content):
            return f"type(content={quote(content)})"
        case Scroll(x, y, direction):
            return f"scroll(start_box='({x},{y})', direction='{direction}')"
        case Wait():
            return "wait()"
        case Finished(content):
            return f"finished(content={quote(content)})"
        case CallUser():
            return "call_user()"


def parse(answer: str) -> Action:
    r"""Read the one action of an answer: ``Thought: …\nAction: call(…)``, the thought being optional.

    Boxes may be wrapped in ``<|box_start|>…<|box_end|>`` and may have four numbers, whose centre is meant, as the
    UI-TARS models write them.

    Raises :class:`Unparsable` if there is no action or more than one, or its name or an argument is not of the grammar.
    """
    if len(answer) > LONGEST_ANSWER:
        raise Unparsable(f"the answer has {len(answer)} characters, more than {LONGEST_ANSWER}")
    marker = MARKER.match(answer)
    if marker is None:
        raise Unparsable("the answer has no line that begins with 'Action:'")
    thought, text = marker["thought"], marker["call"]
    if thought.strip() and not thought.lstrip().startswith("Thought:"):
        raise Unparsable("only a 'Thought:' may stand before the action")
    name, arguments = split_call(text.strip())
    if name not in GRAMMAR:
        raise Unparsable(f"unknown action {name!r}: known are {', '.join(GRAMMAR)}")
    parameters, optional, build = GRAMMAR[name]
    unknown = arguments.keys() - set(parameters)
    missing = set(parameters) - arguments.keys() - set(optional)
    if unknown or missing:
        raise Unparsable(f"{name} takes {list(parameters)}, not {sorted(arguments)}")
    return build(arguments)


def split_call(text: str) -> tuple[str, dict[str, str]]:
    """Split ``name(key='value', …)`` into the name and the unescaped values."""
    head = CALL.fullmatch(text)
    if head is None:
        raise Unparsable(f"not a call like click(start_box='(x,y)'): {text[:80]!r}")
    rest, arguments = head["arguments"].strip(), {}
    while rest:
        argument = ARGUMENT.match(rest)
        if argument is None:
            raise Unparsable(f"not an argument like key='value': {rest[:80]!r}")
        if argument["key"] in arguments:
            raise Unparsable(f"argument {argument['key']!r} is given twice")
        arguments[argument["key"]] = unquote(argument["single"] or argument["double"] or "")
        rest = rest[argument.end() :]
        if argument["comma"] and not rest:
            raise Unparsable("an argument is missing after the last comma")
        if rest and not argument["comma"]:
            raise Unparsable(f"a comma is missing before {rest[:80]!r}")
    return head["name"], arguments


def point(box: str) -> Point:
    """Return the point a box means: ``(x,y)``, or the centre of ``(x1,y1,x2,y2)``; square brackets are the same."""
    match = BOX.fullmatch(box.strip().removeprefix("<|box_start|>").removesuffix("<|box_end|>"))
    if match is None:
        raise Unparsable(f"not a box like (x,y): {box[:80]!r}")
    numbers = [float(number) for number in match["numbers"].split(",")]
    if len(numbers) == 2:
        return round(numbers[0]), round(numbers[1])
    return round((numbers[0] + numbers[2]) / 2), round((numbers[1] + numbers[3]) / 2)


def direction(text: str) -> Literal["up", "down", "left", "right"]:
    """Return a scroll direction, or raise :class:`Unparsable`."""
    match text.strip().lower():
        case "up" | "down" | "left" | "right" as known:
            return known
    raise Unparsable(f"unknown direction {text[:80]!r}: known are up, down, left, right")


def keys(text: str) -> tuple[str, ...]:
    """Return the keys of a hotkey, or raise :class:`Unparsable` if there is none."""
    pressed = tuple(text.split())
    if not pressed:
        raise Unparsable("hotkey names no key")
    return pressed


def quote(text: str) -> str:
    """Return ``text`` in single quotes, with quotes, backslashes and control characters escaped."""
    return "'" + "".join(ESCAPES.get(character, character) for character in text) + "'"


def unquote(text: str) -> str:
    """Undo :func:`quote` on what stands between the quotes; an unknown escape stands for itself."""
    return ESCAPED.sub(lambda match: UNESCAPES.get(match[0], match[0]), text)


CLICKS = {Click: "click", DoubleClick: "left_double", RightClick: "right_single"}
MARKER = re.compile(r"(?P<thought>(?:.*\n)?)[ \t]*Action:(?P<call>.*)", re.DOTALL)
ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
UNESCAPES = {escaped: plain for plain, escaped in ESCAPES.items()} | {'\\"': '"'}
ESCAPED = re.compile(r"\\.", re.DOTALL)
CALL = re.compile(r"(?P<name>[a-z_]+)\((?P<arguments>.*)\)", re.DOTALL)
ARGUMENT = re.compile(
    r"(?P<key>[a-z_]+)\s*=\s*(?:'(?P<single>(?:[^'\\]|\\.)*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\")\s*(?P<comma>,?)\s*",
    re.DOTALL,
)
NUMBER = r"\s*\d{1,5}(?:\.\d{1,6})?\s*"
BOX = re.compile(rf"[(\[](?P<numbers>{NUMBER},{NUMBER}(?:,{NUMBER},{NUMBER})?)[)\]]")

Parameters = tuple[str, ...]
GRAMMAR: dict[str, tuple[Parameters, Parameters, Callable[[dict[str, str]], Action]]] = {
    "click": (("start_box",), (), lambda a: Click(*point(a["start_box"]))),
    "left_double": (("start_box",), (), lambda a: DoubleClick(*point(a["start_box"]))),
    "right_single": (("start_box",), (), lambda a: RightClick(*point(a["start_box"]))),
    "drag": (("start_box", "end_box"), (), lambda a: Drag(*point(a["start_box"]), *point(a["end_box"]))),
    "hotkey": (("key",), (), lambda a: Hotkey(keys(a["key"]))),
    "type": (("content",), (), lambda a: Type(a["content"])),
    "scroll": (
        ("start_box", "direction"),
        (),
        lambda a: Scroll(*point(a["start_box"]), direction=direction(a["direction"])),
    ),
    "wait": ((), (), lambda _: Wait()),
    "finished": (("content",), ("content",), lambda a: Finished(a.get("content", ""))),
    "call_user": ((), (), lambda _: CallUser()),
}
"""Each action's name: its parameters, those of them that may be left out, and how it is made."""
