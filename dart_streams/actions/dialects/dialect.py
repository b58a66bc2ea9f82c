"""What every dialect does: read an answer, write an action, and open the prompt. Pure.

A dialect is read by one reader that understands what it can and notes what was wrong. ``lenient`` keeps that,
``strict`` refuses an answer with anything wrong.
"""

import re
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from dart_streams.actions.grammar import Unparsable
from dart_streams.actions.sequence import pointer_after
from dart_streams.actions.typed import Action, Move, Scroll

Coordinates = Literal["absolute", "relative"]
Strictness = Literal["strict", "lenient"]
MultipleActions = Literal["first", "all"]
Role = Literal["system", "user"]
Place = tuple[int, int]

Kind = Literal[
    "marker", "text", "name", "argument", "quotes", "json", "cut", "key", "amount", "place", "outside", "several"
]
"""What can be wrong with an answer that is still understood.

``marker``: what introduces an action is not where it should be; ``text``: other words stand where none belong;
``name``: an action by another name; ``argument``: one unknown, given twice or in another form; ``quotes``: a value
without its quotes, or in others; ``json``: JSON in another form; ``cut``: the end is missing; ``key``: keys in
another form; ``amount``: a scroll by nothing or by too much; ``place``: a place in another form; ``outside``: a place
beyond the image; ``several``: actions after the first, which were left out.
"""


class UnsupportedAction(ValueError):
    """An action for which a dialect has no words."""


class View(msgspec.Struct, frozen=True):
    """What the policy saw when it answered: the size of its image, and where the pointer is, in pixels of it."""

    width: int
    height: int
    pointer: Place | None = None

    @property
    def place(self) -> Place:
        """Where the pointer is; the center until an action has moved it."""
        return self.pointer or (self.width // 2, self.height // 2)


class ParseIssue(msgspec.Struct, frozen=True):
    """One thing that was wrong with an answer, in words."""

    kind: Kind
    detail: str


class ParsedAnswer(msgspec.Struct, frozen=True):
    """The actions of an answer, at least one, and what was wrong with it."""

    actions: tuple[Action, ...]
    wrong: tuple[ParseIssue, ...] = ()


class Dialect(Protocol):
    """A way of writing actions."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """Special tokens of the model's vocabulary that prompts and answers of this dialect are written with."""

    @property
    def separate(self) -> bool:
        """Whether each part of the prompt is a message of its own, also after one of the same role."""

    def read(self, answer: str, view: View) -> ParsedAnswer:
        """Read an answer; raise :class:`Unparsable` if it says no action, or :attr:`strictness` does not allow it."""

    def write(self, action: Action, view: View) -> str:
        """Return the answer that says ``action``; raise :class:`UnsupportedAction` if the dialect cannot."""

    def system_messages(self, instruction: str, view: View) -> tuple[tuple[Role, str], ...]:
        """Return the texts of the prompt before the first screen."""

    def history_text(self, answer: str) -> str:
        """Return an earlier answer as the prompt shows it."""


class AnswerBuilder:
    """The actions of an answer as they are read, one after another."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.pointer = view.place
        self.actions: list[Action] = []
        self.wrong: list[ParseIssue] = []

    def note(self, kind: Kind, detail: str) -> None:
        """Note something wrong."""
        self.wrong.append(ParseIssue(kind, detail))

    def add(self, action: Action, at_pointer: bool = False) -> None:
        """Add the next action; one ``at_pointer`` takes the place of a mere move to there."""
        if at_pointer and self.actions and isinstance(self.actions[-1], Move):
            self.actions.pop()
        self.actions.append(action)
        self.pointer = pointer_after(action) or self.pointer

    def place(self, numbers: Sequence[float], coordinates: Coordinates) -> Place:
        """Return the pixel of a place as written: x and y, or a box, whose center is meant.

        One beyond the image is noted, and becomes the nearest in it. Raises :class:`Unparsable` for shares of the image
        (0 to 1), which would all be its first pixel.
        """
        if all(0 < number < 1 for number in numbers):
            units = "pixels" if coordinates == "absolute" else "thousandths of it"
            raise Unparsable(f"a place in the image is in {units}, not a share of it: {tuple(numbers)}", "place")
        width, height = self.view.width, self.view.height
        x, y = numbers if len(numbers) == 2 else ((numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2)
        if coordinates == "relative":
            x, y = x * width / WHOLE, y * height / WHOLE
        inside = min(max(x, 0), width), min(max(y, 0), height)
        if inside != (x, y):
            self.note("outside", f"({x:g},{y:g}) is not in the image of {width}x{height}")
        return min(round(inside[0]), width - 1), min(round(inside[1]), height - 1)

    def amount(self, notches: float) -> int:
        """Return the size of a scroll in notches, from 1 to 100; another one is noted."""
        whole = min(max(round(abs(notches)), 1), MOST_NOTCHES)
        if not 1 <= abs(notches) <= MOST_NOTCHES:
            self.note("amount", f"a scroll by {notches:g} notches: from 1 to {MOST_NOTCHES} are possible")
        return whole

    def reading(self, strictness: Strictness, several: MultipleActions) -> ParsedAnswer:
        """Return what was read; raise :class:`Unparsable` if it is nothing, or has something wrong and may not."""
        if not self.actions:
            raise Unparsable("the answer has no action")
        if strictness == "strict" and self.wrong:
            raise Unparsable(self.wrong[0].detail, self.wrong[0].kind)
        if several == "first" and len(self.actions) > 1:
            self.note("several", f"{len(self.actions) - 1} more actions after the first")
            return ParsedAnswer(tuple(self.actions[:1]), tuple(self.wrong))
        return ParsedAnswer(tuple(self.actions), tuple(self.wrong))


FULL_WIDTH = {ord(wide): plain for wide, plain in zip("\uff08\uff09\uff3b\uff3d\uff0c", "()[],", strict=True)} | {
    0xFF10 + digit: str(digit) for digit in range(10)
}
"""Full-width digits and punctuation of a place, and what they mean."""
TAGS = re.compile(r"<\|box_(?:start|end)\|>|</?(?:point|bbox)>")
NUMBER = re.compile(r"-?[0-9]{1,5}(?:\.[0-9]{1,6})?", re.ASCII)
PLACE = re.compile(r"[\s()\[\],]*(?:-?[0-9]{1,5}(?:\.[0-9]{1,6})?[\s()\[\],]*){2,4}", re.ASCII)
WHOLE = 1000
"""Relative coordinates: the image is so wide, and so high."""
MOST_NOTCHES = 100
NOTCHES = 5
"""Of a scroll without an amount, where a dialect must name one: as OSWorld scrolls."""


def written_place(x: int, y: int, view: View, coordinates: Coordinates) -> Place:
    """Return a pixel as coordinates are written."""
    if coordinates == "absolute":
        return x, y
    return round(x * WHOLE / view.width), round(y * WHOLE / view.height)


def written_size(view: View, coordinates: Coordinates) -> tuple[int, int]:
    """Return the size of the image in which coordinates are written."""
    return (view.width, view.height) if coordinates == "absolute" else (WHOLE, WHOLE)


def written_numbers(written: str) -> tuple[float, ...] | None:
    """Return the two or four numbers of a place that stand in a text, its tags and brackets aside; None if none do."""
    bare = TAGS.sub(" ", written.translate(FULL_WIDTH))
    numbers = tuple(float(number) for number in NUMBER.findall(bare)) if PLACE.fullmatch(bare) else ()
    return numbers if len(numbers) in {2, 4} else None


def signed_notches(action: Scroll) -> int:
    """Return the notches of a scroll: up and right are positive."""
    amount = NOTCHES if action.amount is None else action.amount
    return amount if action.direction in {"up", "right"} else -amount


def split_keys(text: str) -> tuple[str, ...]:
    """Return the keys that are apart by spaces or ``+``; a ``+`` with nothing after it is the key."""
    names: list[str] = []
    for part in text.split():
        pieces = part.split("+")
        if part != "+" and part.endswith("+"):
            pieces = [*pieces[:-2], "+"]
        names += [piece for piece in pieces if piece] if part != "+" else ["+"]
    if not names:
        raise Unparsable(f"no key: {text[:80]!r}", "key")
    return tuple(names)
