"""A tolerant JSON parser for models' answers, in linear time. Pure.

It accepts every form with one meaning and notes it: other quotes, line breaks in texts, trailing commas, Python's
``None``. A value ends by its syntax, not at the first ``</tool_call>`` or code fence, which a text may contain.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from dart_streams.actions.dialects.dialect import Kind, ParseIssue
from dart_streams.actions.grammar import Unparsable

MAX_DEPTH = 16
MAX_NUMBER_CHARACTERS = 40
QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019"}
PUNCTUATION = {"\uff0c": ",", "\u3001": ",", "\uff1a": ":", "\uff5b": "{", "\uff5d": "}", "\uff08": "(", "\uff09": ")"}
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
JSON_WORDS = frozenset({"true", "false", "null"})
INVISIBLE = "\ufeff\u200b\u200c\u200d\u2060"
"""A byte order mark and zero-width characters."""
BLANK = re.compile(rf"(?:[\s{INVISIBLE}]++|//[^\n]*+)*")
JSON_BLANK = re.compile(r"[ \t\r\n]*")
NUMBER = re.compile(r"[-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*+")
KEY = r"[\"'\u201c\u2018]?[A-Za-z_][A-Za-z0-9_ -]{0,40}[\"'\u201d\u2019]?\s*+[:\uff1a]"
CONTROL = re.compile(r"[\x00-\x1f]")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(x[0-9a-fA-F]{2}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})|(.))", re.DOTALL)
"""An escape of JSON, one of Python, or any other."""
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
PLAIN_ESCAPES = frozenset('"\\/')
KNOWN_ESCAPES = frozenset({*ESCAPES, *PLAIN_ESCAPES, *QUOTES, *QUOTES.values()})
SURROGATE = re.compile(r"[\ud800-\udfff]")
OF_TEXT = {close: re.compile(rf"[^{close}\\]*+(?:\\.[^{close}\\]*+)*", re.DOTALL) for close in QUOTES.values()}
"""A text up to the first unescaped closing quote."""
GOES_ON = re.compile(rf"\s*+(?:[,\uff0c]?\s*+{KEY}|[,\uff0c]\s*+[}}\]]|[:\uff1a])")
"""Text after a key, or after a value that is not the object's last."""
BRACE = re.compile(r"\s*+[}\uff5d]")
CLOSED = re.compile(r"\s*+[,\uff0c]?[\s})\]\uff5d]*+")

Ends = Callable[[int], bool]
"""Returns whether a value may end here: the answer ends, or the call is closed."""


class JsonReader:
    """Parses values of an answer; ``wrong`` lists deviations from JSON.

    With ``inner_quotes`` a text may contain unescaped quotes. It ends at the first quote after which the object
    continues, or the call ends as ``ends`` says; a brace after another quote is ambiguous.
    """

    def __init__(self, text: str, ends: Ends, *, inner_quotes: bool = False) -> None:
        self.text = text
        self.ends = ends
        self.inner_quotes = inner_quotes
        self.wrong: list[ParseIssue] = []

    def note(self, kind: Kind, detail: str) -> None:
        """Note an issue once."""
        if (wrong := ParseIssue(kind, detail)) not in self.wrong:
            self.wrong.append(wrong)

    def skip(self, position: int) -> int:
        """Return the offset of the next significant character."""
        blank = BLANK.match(self.text, position)
        end = blank.end() if blank else position
        plain = JSON_BLANK.match(self.text, position)
        if plain is None or plain.end() < end:
            self.note("json", "characters between values that JSON does not have")
        return end

    def mark(self, position: int) -> str:
        """Return the punctuation mark here in ASCII; empty at the end."""
        written = self.text[position : position + 1]
        if written in PUNCTUATION:
            self.note("json", "full-width punctuation")
        return PUNCTUATION.get(written, written)

    def value(self, position: int, depth: int = 0) -> tuple[Any, int]:
        """Return the value at ``position`` and its end; raise :class:`Unparsable` if there is none."""
        position = self.skip(position)
        match self.mark(position):
            case "{" if depth < MAX_DEPTH:
                return self.object(position + 1, depth + 1)
            case "[" | "(" if depth < MAX_DEPTH:
                return self.list(position, depth + 1)
            case "{" | "[" | "(":
                raise Unparsable(f"not JSON: more than {MAX_DEPTH} values within each other")
            case quote if quote in QUOTES:
                return self.string(position)
        if number := NUMBER.match(self.text, position):
            return self.number(number[0]), number.end()
        if word := WORD.match(self.text, position):
            return self.word(word[0]), word.end()
        raise self.refusal(position)

    def refusal(self, position: int) -> Unparsable:
        """Return the error for unexpected text; at the end, for a truncated answer."""
        rest = self.text[position : position + 80]
        if not rest:
            return Unparsable("not JSON: the answer was cut off", "cut")
        return Unparsable(f"not JSON at character {position}: {rest!r}")

    def object(self, position: int, depth: int) -> tuple[dict[str, Any], int]:
        """Return the object whose first key comes next, and its end."""
        fields: dict[str, Any] = {}
        while True:
            position = self.skip(position)
            if self.mark(position) == "}":
                if fields:
                    self.note("json", "a comma after the last value")
                return fields, position + 1
            key, position = self.key(position)
            value, position = self.value(position, depth)
            if key in fields:
                raise Unparsable(f"{key[:80]!r} is given twice")
            fields[key] = value
            position = self.skip(position)
            match self.mark(position):
                case ",":
                    position += 1
                case "}":
                    return fields, position + 1
                case following if following in QUOTES:
                    self.note("json", "a comma is missing between two values")
                case _:
                    return fields, self.unclosed(position)

    def unclosed(self, position: int) -> int:
        """Note a missing last brace; raise :class:`Unparsable` unless the call ends here."""
        if position >= len(self.text) or not self.ends(position):
            raise self.refusal(position)
        self.note("cut", "an object is not closed")
        return position

    def key(self, position: int) -> tuple[str, int]:
        """Return the key at ``position`` and the offset after its colon."""
        if self.mark(position) in QUOTES:
            key, position = self.string(position)
        elif word := WORD.match(self.text, position):
            self.note("quotes", "a key without quotes")
            key, position = word[0], word.end()
        else:
            raise self.refusal(position)
        position = self.skip(position)
        if self.mark(position) != ":":
            raise self.refusal(position)
        return key, position + 1

    def list(self, position: int, depth: int) -> tuple[list[Any], int]:
        """Return the list or Python tuple at ``position``, and its end."""
        close = "]"
        if self.mark(position) == "(":
            self.note("json", "parentheses around a list")
            close = ")"
        items: list[Any] = []
        position += 1
        while True:
            position = self.skip(position)
            if self.mark(position) == close:
                if items:
                    self.note("json", "a comma after the last value")
                return items, position + 1
            value, position = self.value(position, depth)
            items.append(value)
            position = self.skip(position)
            following = self.mark(position)
            if following == close:
                return items, position + 1
            if following == "}":
                self.note("cut", "a list is not closed")
                return items, position
            if following != ",":
                raise self.refusal(position)
            position += 1

    def string(self, position: int) -> tuple[str, int]:
        """Return the unescaped text at ``position``, and its end."""
        opening = self.text[position]
        close = QUOTES[opening]
        if opening != '"':
            self.note("quotes", f"a text between {opening} and {close}")
        begin, end = position + 1, self.first_quote(position + 1, close)
        if self.inner_quotes and not self.ends_at(end):
            while not self.ends_at(end):
                if BRACE.match(self.text, end + 1):
                    raise Unparsable("not JSON: an object that ends, or quotes within a text that are not escaped")
                end = self.first_quote(end + 1, close)
            self.note("quotes", "quotes within a text that are not escaped")
        return self.unescaped(self.text[begin:end]), end + 1

    def first_quote(self, begin: int, close: str) -> int:
        """Return the offset of the next unescaped closing quote."""
        text = OF_TEXT[close].match(self.text, begin)
        if text is None or text.end() >= len(self.text) or self.text[text.end()] != close:
            raise Unparsable("not JSON: a text is not closed, the answer was cut off", "cut")
        return text.end()

    def ends_at(self, quote: int) -> bool:
        """Return whether a text may end with this quote."""
        if GOES_ON.match(self.text, quote + 1):
            return True
        closed = CLOSED.match(self.text, quote + 1)
        end = closed.end() if closed else quote + 1
        return "}" in self.text[quote + 1 : end] and self.ends(end)

    def unescaped(self, written: str) -> str:
        """Unescape a text; raise :class:`Unparsable` for a lone surrogate or ambiguous backslashes."""
        if CONTROL.search(written):
            self.note("json", "a line break or another control character within a text, which JSON escapes")
        escapes = list(ESCAPE.finditer(written)) if "\\" in written else []
        letters = [escape for escape in escapes if escape[1] or escape[3] in ESCAPES]
        if letters and any(escape[3] and escape[3] not in KNOWN_ESCAPES for escape in escapes):
            raise Unparsable(f"not JSON: backslashes that escape, and others that do not: {written[:80]!r}")
        meant = ESCAPE.sub(self.escape, written) if escapes else written
        if not SURROGATE.search(meant):
            return meant
        try:
            return meant.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise Unparsable("not JSON: a text has half of a surrogate pair") from None

    def escape(self, match: re.Match[str]) -> str:
        """Return the character of an escape; an unknown escape stands for itself, but a quote."""
        if match[1]:
            return chr(int(match[1], 16))
        if match[2]:
            self.note("json", "an escape of Python within a text")
            return chr(int(match[2][1:], 16))
        character = match[3]
        if character in ESCAPES:
            return ESCAPES[character]
        if character in PLAIN_ESCAPES:
            return character
        self.note("json", "a backslash before a character that JSON does not escape")
        return character if character in QUOTES else f"\\{character}"

    def number(self, written: str) -> int | float:
        """Parse a number."""
        if len(written) > MAX_NUMBER_CHARACTERS:
            raise Unparsable(f"not JSON: a number of more than {MAX_NUMBER_CHARACTERS} characters")
        if re.fullmatch(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", written) is None:
            self.note("json", "a number in another form")
        return int(written) if re.fullmatch(r"[-+]?[0-9]+", written) else float(written)

    def word(self, written: str) -> bool | str | None:
        """Return the value of an unquoted word."""
        if written in WORDS:
            if written not in JSON_WORDS:
                self.note("json", "True, False or None, as Python writes them")
            return WORDS[written]
        self.note("quotes", "a text without quotes")
        return written


def read(text: str, position: int, ends: Ends) -> tuple[Any, int, list[ParseIssue]]:
    """Return the value at ``position``, its end, and its issues.

    The end must satisfy ``ends``. Valid JSON has no issues. Raises :class:`Unparsable` if no value has one meaning.
    """
    plain = JsonReader(text, ends)
    refusal = None
    try:
        value, end = plain.value(position)
        if ends(end):
            return value, end, plain.wrong or find_disagreement(text[position:end], value)
    except Unparsable as error:
        refusal = error
    inner = JsonReader(text, ends, inner_quotes=True)
    try:
        value, end = inner.value(position)
    except Unparsable as error:
        raise refusal or error from None
    if not ends(end):
        raise refusal or inner.refusal(end)
    return value, end, inner.wrong


def find_disagreement(text: str, value: Any) -> list[ParseIssue]:
    """Return an issue if JSON parses ``text`` to another value, or not at all."""
    try:
        if msgspec.json.decode(text) == value:
            return []
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    return [ParseIssue("json", "JSON reads it otherwise, or not at all")]
