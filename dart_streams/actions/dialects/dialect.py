"""The interface of a dialect, and what parsers share. Pure.

Parsers accept every unambiguous answer and note its issues: ``lenient`` keeps such an answer, ``strict`` refuses it.
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from dart_streams.actions.grammar import Unparsable
from dart_streams.actions.offered import check_call
from dart_streams.actions.sequence import pointer_after
from dart_streams.actions.typed import Action, Call, Move, Scroll
from topics.values import OfferedCall

Coordinates = Literal["absolute", "relative"]
Strictness = Literal["strict", "lenient"]
MultipleActions = Literal["first", "all"]
Role = Literal["system", "user"]
Place = tuple[int, int]

Kind = Literal[
    "marker", "text", "name", "argument", "quotes", "json", "cut", "key", "amount", "place", "outside", "several"
]
"""Issues of an answer that is still understood. ``marker``: the introduction of an action is misplaced; ``text``:
unexpected text; ``name``: an alias of an action; ``argument``: unknown, repeated or in another form; ``quotes``:
missing or other quotes; ``json``: JSON in another form; ``cut``: truncated; ``key``: keys in another form; ``amount``:
a scroll out of range; ``place``: malformed coordinates; ``outside``: coordinates outside the image; ``several``:
actions after the first, which were dropped."""


class UnsupportedAction(ValueError):
    """An action that a dialect cannot express."""


class View(msgspec.Struct, frozen=True):
    """The image of the policy at its answer: width, height and the pointer's position, in pixels."""

    width: int
    height: int
    pointer: Place | None = None

    @property
    def place(self) -> Place:
        """The pointer's position; the center until an action has moved it."""
        return self.pointer or (self.width // 2, self.height // 2)


class ParseIssue(msgspec.Struct, frozen=True):
    """One issue of an answer, with a message."""

    kind: Kind
    detail: str


class ParsedAnswer(msgspec.Struct, frozen=True):
    """The actions of an answer, at least one, and its issues."""

    actions: tuple[Action, ...]
    wrong: tuple[ParseIssue, ...] = ()


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """Reads and writes actions in a model's format."""

    coordinates: Coordinates = "absolute"
    strictness: Strictness = "strict"
    several: MultipleActions = "first"
    tokens: tuple[str, ...] = ()
    """Special tokens of the model's vocabulary in prompts and answers."""
    separate: bool = False
    """Whether each part of the prompt is a separate message, even after one of the same role."""

    def read(self, answer: str, view: View, offered: Sequence[OfferedCall] = ()) -> ParsedAnswer:
        """Parse an answer, which may call the ``offered`` functions.

        Raises :class:`Unparsable` if it has no action, a call that does not fit its function, or ``strictness`` refuses
        it.
        """
        builder = AnswerBuilder(view, self.coordinates, offered)
        self._add_actions(answer, builder)
        parsed = builder.build(self.strictness, self.several)
        for action in parsed.actions:
            if isinstance(action, Call):
                check_call(action, offered)
        return parsed

    def _add_actions(self, answer: str, builder: "AnswerBuilder") -> None:
        raise NotImplementedError

    def write(self, action: Action, view: View) -> str:
        """Return the answer for ``action``; raise :class:`UnsupportedAction` if the dialect cannot express it."""
        raise NotImplementedError

    def system_messages(
        self, instruction: str, view: View, offered: Sequence[OfferedCall] = ()
    ) -> tuple[tuple[Role, str], ...]:
        """Return the prompt's messages before the first screen, as (role, text)."""
        raise NotImplementedError

    def returned_text(self, returned: str) -> str:
        """Return what a call returned as the prompt shows it."""
        return f"Returned: {returned}"

    def history_text(self, answer: str) -> str:
        """Return an earlier answer as the prompt shows it."""
        return answer


class AnswerBuilder:
    """Collects the actions of an answer in order; ``coordinates`` are those of the dialect."""

    def __init__(self, view: View, coordinates: Coordinates, offered: Sequence[OfferedCall] = ()) -> None:
        self.view = view
        self.coordinates = coordinates
        self.offered = offered
        self.pointer = view.place
        self.actions: list[Action] = []
        self.wrong: list[ParseIssue] = []

    def note(self, kind: Kind, detail: str) -> None:
        """Note an issue."""
        self.wrong.append(ParseIssue(kind, detail))

    def add(self, action: Action, at_pointer: bool = False) -> None:
        """Append an action; one ``at_pointer`` replaces a preceding move to the same position."""
        if at_pointer and self.actions and isinstance(self.actions[-1], Move):
            self.actions.pop()
        self.actions.append(action)
        self.pointer = pointer_after(action) or self.pointer

    def place(self, numbers: Sequence[float]) -> Place:
        """Return the pixel of written coordinates: x and y, or the center of a box.

        Coordinates outside the image are noted and clamped. Raises :class:`Unparsable` for fractions of the image (0 to
        1), which would all be its first pixels.
        """
        if all(0 <= number <= 1 for number in numbers) and not all(number.is_integer() for number in numbers):
            units = "pixels" if self.coordinates == "absolute" else "thousandths of it"
            raise Unparsable(f"a place in the image is in {units}, not a share of it: {tuple(numbers)}", "place")
        width, height = self.view.width, self.view.height
        x, y = numbers if len(numbers) == 2 else ((numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2)
        if self.coordinates == "relative":
            x, y = x * width / WHOLE, y * height / WHOLE
        inside = min(max(x, 0), width), min(max(y, 0), height)
        if inside != (x, y):
            self.note("outside", f"({x:g},{y:g}) is not in the image of {width}x{height}")
        return min(round(inside[0]), width - 1), min(round(inside[1]), height - 1)

    def amount(self, notches: float) -> int:
        """Return a scroll's size in notches, clamped to 1 to 100; clamping is noted."""
        whole = min(max(round(abs(notches)), 1), MOST_NOTCHES)
        if not 1 <= abs(notches) <= MOST_NOTCHES:
            self.note("amount", f"a scroll by {notches:g} notches: from 1 to {MOST_NOTCHES} are possible")
        return whole

    def build(self, strictness: Strictness, several: MultipleActions) -> ParsedAnswer:
        """Return the parsed answer; raise :class:`Unparsable` if it has no action or ``strictness`` refuses it."""
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
"""Full-width digits and punctuation of coordinates, mapped to ASCII."""
TAGS = re.compile(r"<\|box_(?:start|end)\|>|</?(?:point|bbox)>")
NUMBER = re.compile(r"-?[0-9]{1,5}(?:\.[0-9]{1,30})?", re.ASCII)
PLACE = re.compile(rf"[\s()\[\],]*{NUMBER.pattern}(?:[\s()\[\],]+{NUMBER.pattern}){{1,3}}[\s()\[\],]*", re.ASCII)
WHOLE = 1000
"""Width and height of the image in relative coordinates."""
MOST_NOTCHES = 100
NOTCHES = 5
"""Scroll amount where a dialect needs one and the action has none, as in OSWorld."""


def written_place(x: int, y: int, view: View, coordinates: Coordinates) -> Place:
    """Return a pixel in the dialect's coordinates."""
    if coordinates == "absolute":
        return x, y
    return round(x * WHOLE / view.width), round(y * WHOLE / view.height)


def written_size(view: View, coordinates: Coordinates) -> tuple[int, int]:
    """Return the image's size in the dialect's coordinates."""
    return (view.width, view.height) if coordinates == "absolute" else (WHOLE, WHOLE)


def written_numbers(written: str) -> tuple[float, ...] | None:
    """Return the two or four numbers of written coordinates, without tags and brackets; None if there are none."""
    bare = TAGS.sub(" ", written.translate(FULL_WIDTH))
    numbers = tuple(float(number) for number in NUMBER.findall(bare)) if PLACE.fullmatch(bare) else ()
    return numbers if len(numbers) in {2, 4} else None


def signed_notches(action: Scroll) -> int:
    """Return a scroll's notches: positive up and right."""
    amount = NOTCHES if action.amount is None else action.amount
    return amount if action.direction in {"up", "right"} else -amount


def split_keys(text: str) -> tuple[str, ...]:
    """Split key names at spaces or ``+``; a trailing ``+`` is a key."""
    names: list[str] = []
    for part in text.split():
        pieces = part.split("+")
        if part != "+" and part.endswith("+"):
            pieces = [*pieces[:-2], "+"]
        names += [piece for piece in pieces if piece] if part != "+" else ["+"]
    if not names:
        raise Unparsable(f"no key: {text[:80]!r}", "key")
    return tuple(names)
