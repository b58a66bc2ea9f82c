"""Parser for the function calls of UI-TARS answers, ``name(key='value', …)``.

Values are not Python literals: apostrophes and line breaks may be unescaped. A quoted value ends at the first quote
after which the call can continue or end. The scan runs in linear time.
"""

import bisect
import re
from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from dart_streams.actions.dialects.dialect import Kind
from dart_streams.actions.grammar import Unparsable, unquote

Note = Callable[[Kind, str], None]
Parameters = tuple[str, ...]

NAME = r"[A-Za-z_][A-Za-z0-9_]{0,30}"
LABEL = re.compile(r"(?:\*\*)?Action[ \t]?[:\uff1a](?:\*\*)?\s*")
WHOLE = (")", "]", ">")
"""Ends of a complete coordinate; other unclosed values may be truncated."""
AS_WRITTEN = "Action:"
"""The exact label; variants are noted."""
OPENS, CLOSES, COMMAS = "(\uff08", ")\uff09", ",\uff0c"
"""Punctuation and its full-width forms, which are noted."""
THOUGHT = re.compile(r"\s*(?:Thought|Reflection|Action_Summary):", re.ASCII)
HEAD = re.compile(rf"(?P<name>{NAME})[ \t]*(?P<opens>[{OPENS}])", re.ASCII)
KEY = re.compile(rf"(?P<key>{NAME})[ \t]*=[ \t]*", re.ASCII)
BARE = re.compile(
    r"<\|box_start\|>[^<]*<\|box_end\|>|<(?:point|bbox)>[^<]*</(?:point|bbox)>|\([^()]*\)|\[[^\[\]]*\]|[^,()\s]+"
)
SPACE = re.compile(r"\s*")
AFTER_VALUE = re.compile(rf"\s*(?:[{CLOSES}]|[{COMMAS}]\s*[{CLOSES}]|[{COMMAS}]?\s*{NAME}[ \t]*=)", re.ASCII)
QUOTES = {"'": "'", '"': '"', "\u2018": "\u2019", "\u201c": "\u201d"}


class WrittenCall(msgspec.Struct, frozen=True):
    """A call: its name in lower case, its unescaped arguments, and the offset after it."""

    name: str
    arguments: dict[str, str]
    end: int


class TextEnds(msgspec.Struct, frozen=True):
    """Possible ends of a text in these quotes, ascending.

    After a quote in ``over`` the answer ends or the next action begins, and after one in ``closed`` the call is closed.
    ``last`` ends the answer itself, -1 if no quote does.
    """

    over: list[int]
    closed: list[int]
    last: int


class Scanner:
    """Extracts calls from an answer.

    ``parameters`` maps readable actions to their parameter names, ``known`` are the actions that errors list, and
    ``texts`` are the free-text parameters, whose end is ambiguous.
    """

    def __init__(
        self,
        text: str,
        parameters: Mapping[str, Parameters],
        known: Collection[str],
        texts: Collection[str],
        note: Note,
    ) -> None:
        self.text = text
        self.known = known
        self.parameters = parameters
        self.texts = texts
        self.note = note
        self.text_ends: dict[str, TextEnds] = {}

    def calls(self) -> list[WrittenCall]:
        """Return the calls of the answer; raise :class:`Unparsable` if there is none or one is malformed."""
        begin: int | None = self.first()
        calls = []
        while begin is not None:
            calls.append(self.call(begin))
            begin = self.following(calls[-1].end)
        return calls

    def first(self) -> int:
        """Return the offset of the first call, noting misplaced text before it."""
        labels = [match for match in LABEL.finditer(self.text) if self.is_call(match.end())]
        line = 0
        for label in labels:
            line = max(line, self.text.rfind("\n", line, label.start()) + 1)
            if not self.text[line : label.start()].strip():
                self.check_before(self.text[: label.start()])
                self.check_label(label)
                return label.end()
            line = label.start()
        if labels:
            self.note("marker", "'Action:' does not begin a line")
            return labels[0].end()
        for match in re.finditer(r"^[ \t]*", self.text, re.MULTILINE):
            if self.is_call(match.end()):
                self.note("marker", "no 'Action:' before the action")
                return match.end()
        for head in HEAD.finditer(self.text):
            if self.is_call(head.start()) and self.has_argument(head):
                self.note("marker", "'Action:' and the action are not beside each other")
                return head.start()
        for label in LABEL.finditer(self.text):
            if name := HEAD.match(self.text, label.end()):
                raise Unparsable(f"unknown action {name['name']!r}: known are {', '.join(self.known)}")
        raise Unparsable("the answer has no 'Action:' with a call like click(start_box='(x,y)')")

    def check_before(self, before: str) -> None:
        """Note text before the first action that is not a thought."""
        if before.strip() and not THOUGHT.match(before):
            self.note("text", "only a thought may stand before the action")

    def check_label(self, label: re.Match[str]) -> None:
        """Note a label in another spelling."""
        if label[0].rstrip() != AS_WRITTEN:
            self.note("marker", f"{label[0].strip()!r} instead of {AS_WRITTEN!r}")

    def is_call(self, position: int) -> bool:
        """Return whether a known action is called at ``position``."""
        head = HEAD.match(self.text, position)
        return head is not None and head["name"].lower() in self.parameters

    def following(self, end: int) -> int | None:
        """Return the offset of the next call, None after the last; note other text between and after calls."""
        begin = skip(self.text, end)
        if begin == len(self.text):
            return None
        label = LABEL.match(self.text, begin)
        if label is not None and self.is_call(label.end()):
            self.check_label(label)
            return label.end()
        if self.is_call(begin):
            if "\n\n" not in self.text[end:begin].replace("\r\n", "\n"):
                self.note("text", "an empty line is missing between two actions")
            return begin
        if THOUGHT.match(self.text, begin):
            for label in LABEL.finditer(self.text, begin):
                if self.is_call(label.end()):
                    return label.end()
        self.note("text", f"words after the action: {self.text[begin : begin + 40]!r}")
        return None

    def call(self, begin: int) -> WrittenCall:
        """Parse the call at ``begin``."""
        head = HEAD.match(self.text, begin)
        assert head is not None
        name = head["name"].lower()
        arguments: dict[str, str] = {}
        if name != head["name"]:
            self.note("name", f"the action {head['name']!r} is spelled {name!r}")
        self.check_width(head["opens"])
        position = skip(self.text, head.end())
        while position < len(self.text) and self.text[position] not in CLOSES:
            key, value, position = self.argument(name, position, arguments)
            if key in arguments:
                self.note("argument", f"argument {key!r} is given twice")
            arguments.setdefault(key, value)
            position = self.after_argument(position)
        if position >= len(self.text):
            self.note("cut", f"the call of {name} is not closed")
        self.check_width(self.text[position : position + 1])
        return WrittenCall(name, arguments, position + 1)

    def check_width(self, mark: str) -> None:
        """Note a full-width punctuation mark."""
        if mark and not mark.isascii():
            self.note("argument", f"full-width punctuation: {mark!r}")

    def argument(self, name: str, position: int, given: Mapping[str, str]) -> tuple[str, str, int]:
        """Parse an argument; return its name, its value and the offset after it."""
        match = KEY.match(self.text, position)
        if match is None:
            self.note("argument", f"a value of {name} without a name")
            key = next((parameter for parameter in self.parameters[name] if parameter not in given), "")
        else:
            key, position = match["key"], match.end()
        quote = self.text[position : position + 1]
        if quote in QUOTES:
            if quote not in {"'", '"'}:
                self.note("quotes", "typographic quotes")
            is_text = key in self.texts and key in self.parameters[name]
            return key, *self.quoted(key, position + 1, QUOTES[quote], is_text)
        bare = BARE.match(self.text, position)
        if bare is None:
            raise Unparsable(f"argument {key!r} of {name} has no value")
        self.note("quotes", f"the value of {key!r} is not quoted")
        return key, bare[0], bare.end()

    def quoted(self, key: str, begin: int, quote: str, is_text: bool) -> tuple[str, int]:
        """Return the unescaped value at ``begin`` and the offset after its closing quote."""
        ends = self.text_end(begin, quote) if is_text else self.value_end(begin, quote)
        if ends is not None:
            value = unquote(self.text[begin:ends])
            if not is_text and value != quote and next(self.unescaped(begin, quote)) != ends:
                raise Unparsable(f"quotes within the value of {key!r}: {value[:80]!r}", "quotes")
            return value, ends + 1
        rest = self.text[begin:].rstrip()
        if is_text or not rest.endswith(WHOLE):
            raise Unparsable(f"the value of {key!r} is not closed: the answer was cut off", "cut")
        self.note("cut", f"the value of {key!r} is not closed")
        return rest, len(self.text)

    def value_end(self, begin: int, quote: str) -> int | None:
        """Return the end of a plain value: the first quote after which the call continues or ends."""
        for position in self.unescaped(begin, quote):
            after = skip(self.text, position + 1)
            if after == len(self.text) or AFTER_VALUE.match(self.text, position + 1):
                return position
        return None

    def text_end(self, begin: int, quote: str) -> int | None:
        """Return the end of a text: the first quote before the answer's end or the next action, else the call's end."""
        if quote not in self.text_ends:
            self.text_ends[quote] = self.find_text_ends(quote)
        ends = self.text_ends[quote]
        for places in (ends.over, ends.closed, [ends.last]):
            if (index := bisect.bisect_left(places, begin)) < len(places):
                return places[index]
        return None

    def find_text_ends(self, quote: str) -> TextEnds:
        """Return all possible ends of texts in these quotes."""
        over, closed, last = list[int](), list[int](), -1
        for position in self.unescaped(0, quote):
            after = skip(self.text, position + 1)
            if after == len(self.text):
                last = position
            elif self.text[after] in CLOSES:
                closed.append(position)
                following = skip(self.text, after + 1)
                if following == len(self.text) or self.goes_on(after + 1, following):
                    over.append(position)
        return TextEnds(over, closed, last)

    def goes_on(self, end: int, begin: int) -> bool:
        """Return whether an action or thought begins at ``begin``, after a call that ends at ``end``.

        A call without arguments may be part of a typed program, unless an empty line or a label precedes it.
        """
        lines = self.text.count("\n", end, begin)
        if not lines:
            return False
        if THOUGHT.match(self.text, begin):
            return True
        label = LABEL.match(self.text, begin)
        if label is not None or lines > 1:
            return self.is_call(label.end() if label else begin)
        head = HEAD.match(self.text, begin)
        return head is not None and self.is_call(begin) and self.has_argument(head)

    def has_argument(self, head: re.Match[str]) -> bool:
        """Return whether a known call begins with one of its parameters."""
        key = KEY.match(self.text, head.end())
        return key is not None and key["key"] in self.parameters[head["name"].lower()]

    def unescaped(self, begin: int, quote: str) -> Iterator[int]:
        """Yield the offsets of unescaped quotes."""
        quotes = re.compile(rf"\\+{quote}?|{quote}")
        for match in quotes.finditer(self.text, begin):
            backslashes = match[0].count("\\")
            if backslashes % 2 == 0 and match[0].endswith(quote):
                yield match.end() - 1

    def after_argument(self, position: int) -> int:
        """Return the offset of the next argument or of the closing parenthesis."""
        position = skip(self.text, position)
        if position < len(self.text) and self.text[position] in COMMAS:
            self.check_width(self.text[position])
            after = skip(self.text, position + 1)
            if self.text[after : after + 1] in tuple(CLOSES):
                self.note("argument", "an argument is missing after the last comma")
            return after
        if position < len(self.text) and self.text[position] not in CLOSES:
            self.note("argument", f"a comma is missing before {self.text[position : position + 40]!r}")
            if KEY.match(self.text, position) is None:
                raise Unparsable(f"not an argument: {self.text[position : position + 40]!r}")
        return position


def skip(text: str, position: int) -> int:
    """Return the offset of the next character that is not white space."""
    match = SPACE.match(text, position)
    return match.end() if match else position
