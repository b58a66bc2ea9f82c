"""Long answers on which a reader that looks at parts of them again and again would not end.

``python -m tests.unit.actions.long_answers --all`` reads every combination in every dialect, without it the riskiest.
"""

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator

from dart_streams.actions import Unparsable
from dart_streams.actions.dialects import Computer13, Dialect, Native, QwenComputerUse, QwenMobileUse, UiTars
from tests.unit.actions.generated_answers import COMPUTER_13, DIALECTS, QWEN, UI_TARS, VIEW

CHARACTERS = 100_000
LENIENT: tuple[Dialect, ...] = (
    Native(),
    UiTars(strictness="lenient", several="all"),
    QwenComputerUse(strictness="lenient", several="all"),
    QwenMobileUse(strictness="lenient", several="all"),
    Computer13(strictness="lenient", several="all"),
)
TYPED = '{"name": "computer_use", "arguments": {"action": "type", "text": "'
RISKY = (
    ("```json\n", " "),
    ("```json\n{", "```json\n{"),
    ("", "```\n"),
    ("<tool_call>", '<tool_call>{"'),
    ("<tool_call>" + TYPED, '"} '),
    ("<tool_call>" + TYPED, '", "'),
    ("<tool_call>" + TYPED, "\\"),
    ('{"action_type": "TYPING", "text": "', '"} '),
    ("", '{"a": 1} '),
    ("{", "01, "),
    ("", "x Action: wait()"),
    ("Action: ", "Action: type(content='a') Thought: "),
    ("Action: type(content='", "') "),
    ("Action: type(content='", "\\"),
    ("Action: click(", "a='x', "),
    ("Action: click(start_box='", " "),
    ("Action: click(start_box='", "1 "),
    ("\n", " \n"),
)
"""Beginnings, and what repeats after each."""
HEADS = (
    "",
    "Thought: ",
    "Action: ",
    "Action: type(content='",
    "Action: click(start_box='",
    "Action: click(",
    "<tool_call>",
    '<tool_call>{"name": "computer_use", "arguments": {"action": "type", "text": "',
    "<tool_call>{'name': 'computer_use', 'arguments': {'action': 'type', 'text': '",
    '<tool_call>{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": "',
    "```json\n",
    '```json\n{"action_type": "TYPING", "text": "',
    '{"action_type": "TYPING", "text": "',
    "[",
)
REPEATED = (
    *("a", " ", "\n", "\t", "'", '"', "\\", "\\'", '\\"', "(", ")", "[", "{", "}", ",", ":", "=", "<", "`", "/", "0"),
    *("' ", '" ', "')", "') ", "')\n", '"}', '"} ', '", ', '",\n', '": ', "a='", "a=[", "a=<point>", "\n ", " \n"),
    *("```", "```\n", "```json\n", "```json\n{", "```json {", "<tool_call>", "</tool_call>", '<tool_call>{"', "//"),
    *("Action:", "Action: ", "Action: wait()", "x Action: wait()", "\nAction: wait()", "\n\nwait()"),
    *("Thought: Action: ", "Action: type(content='a') Thought: ", "\nThought: Action: type(content='a')\n"),
    *("type(content='", "click(a='x', ", "[1, ", "(1, ", "1 ", "1, ", "01, ", "\\u0041", "\\ud83d"),
    *('{"a": ', '{"a": 1}', '{"a": 1},', "{'a': ", '"a": 1, '),
    *("'a', ", "\ufeff", "\uff0c", "<|box_start|>", "<point>1 ", "None, ", "a b ", "ctrl+", "a-"),
)


def repeated(head: str, part: str, characters: int) -> str:
    """Return an answer of ``length`` characters: a beginning, and what repeats after it."""
    return head + part * (characters // len(part))


def answers() -> Iterator[str]:
    """Yield every combination, and well-formed answers again and again."""
    for head, part in itertools.product(HEADS, REPEATED):
        yield repeated(head, part, CHARACTERS)
    for base in (*UI_TARS, *QWEN, *COMPUTER_13):
        for between in ("", "\n", "\n\n", " "):
            yield repeated("", base + between, CHARACTERS)


def read_all(texts: Iterable[str], dialects: Iterable[Dialect]) -> int:
    """Read every text in every dialect, and return how often it was read or refused."""
    count = 0
    for text, dialect in itertools.product(texts, dialects):
        with contextlib.suppress(Unparsable):
            dialect.read(text, VIEW)
        count += 1
    return count


if __name__ == "__main__":
    if "--all" in sys.argv:
        found = read_all(answers(), DIALECTS)
    else:
        found = read_all((repeated(head, part, 4 * CHARACTERS) for head, part in RISKY), LENIENT)
    sys.stdout.write(f"{found}\n")
