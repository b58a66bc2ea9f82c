"""Answers of any kind, derived from well-formed ones: cut, spliced, with characters lost, doubled and put in.

``python -m tests.unit.actions.generated_answers`` reads a million of them in every dialect.
"""

import argparse
import random
import time
from collections import Counter
from typing import Any

from dart_streams.actions import Unparsable
from dart_streams.actions.dialects import Computer13, Dialect, Native, QwenComputerUse, QwenMobileUse, UiTars, View
from dart_streams.actions.sequence import format_all, parse_all
from dart_streams.actions.typed import Hotkey

VIEW = View(1932, 1092, (7, 9))
UI_TARS = (
    "Thought: The button is there.\nAction: click(start_box='(84,120)')",
    "Thought: x\nAction: click(point='<point>84 120</point>')",
    "Action: left_double(start_box='<|box_start|>(1,2)<|box_end|>')",
    "Action: drag(start_point='<point>1 2</point>', end_point='<point>300 400</point>')",
    "Reflection: no\nAction_Summary: type it\nAction: type(content='it's a \"test\"\nof \\'quotes\\'\\n')",
    "Action: hotkey(key='ctrl+shift c')\n\npress(key='a')\n\nrelease(key='a')",
    "Action: scroll(direction='down')",
    "Action: scroll(start_box='[1, 2, 3, 4]', direction='up', amount='7')",
    "Action: finished(content='done')",
    "Action: wait()",
    "Action: call_user()",
)
QWEN = (
    '<tool_call>\n{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [5, 6]}}\n</tool_call>',
    '<tool_call>{"name": "computer_use", "arguments": {"action": "key", "keys": ["ctrl", "c"]}}</tool_call>',
    '<tool_call>{"name": "computer_use", "arguments": {"action": "scroll", "pixels": -5}}</tool_call>',
    '<tool_call>{"name": "computer_use", "arguments": {"action": "type", "text": "a\\u00e9\\n"}}</tool_call>',
    '{"action": "terminate", "status": "success"}',
    "<tool_call>{'name': 'computer_use', 'arguments': {'action': 'type', 'text': 'it\\'s', 'time': None,}}</tool_call>",
    '<tool_call>{"name": "computer_use", "arguments": "{\\"action\\": \\"wait\\"} {\\"a\\": 1}"}</tool_call>',
    '<tool_call>{"name": "computer_use", "arguments": {"action": "mouse_move", "coordinate": "[1, 2]"}}</tool_call>',
    '<tool_call>{"name": "computer_use", "arguments": {"action": "type", "text": "say "</tool_call>" ]"}}</tool_call>',
)
MOBILE = (
    '<tool_call>\n{"name": "mobile_use", "arguments": {"action": "click", "coordinate": [5, 6]}}\n</tool_call>',
    '<tool_call>{"name": "mobile_use", "arguments": {"action": "long_press", "coordinate": [5, 6]}}</tool_call>',
    '<tool_call>{"name": "mobile_use", "arguments": {"action": "swipe", "coordinate": [5, 6], "coordinate2": [1, 2]}}',
    '<tool_call>{"name": "mobile_use", "arguments": {"action": "system_button", "button": "Back"}}</tool_call>',
    '<tool_call>{"name": "mobile_use", "arguments": {"action": "key", "text": "volume_up"}}</tool_call>',
    '<tool_call>{"name": "mobile_use", "arguments": {"action": "answer", "text": "4"}}</tool_call>',
    *QWEN,
)
COMPUTER_13 = (
    '```json\n{"action_type": "CLICK", "x": 10, "y": 20.5, "button": "left", "num_clicks": 2}\n```',
    '```json\n{"action_type": "SCROLL", "parameters": {"dx": 3, "dy": -4}}\n```',
    '```\n{"action_type": "HOTKEY", "keys": ["ctrl", " "]}\n```',
    '[{"action_type": "MOVE_TO", "x": 1, "y": 2}, {"action_type": "MOUSE_DOWN"}]',
    "```WAIT```",
    "FAIL",
    '```json\n{"action_type": "TYPING", "text": "```\nx"\n```\t"}\n```',
)
BASES: dict[type, tuple[str, ...]] = {
    Native: UI_TARS,
    UiTars: UI_TARS,
    QwenComputerUse: QWEN,
    QwenMobileUse: MOBILE,
    Computer13: COMPUTER_13,
}
PIECES = (
    *"'\"()[]{},:=\\`<>+-. \n\t\r\0",
    *("Action:", "Thought:", "\n\n", "<tool_call>", "</tool_call>", "```", "<point>", "</point>", "<|box_start|>"),
    *("\u0661", "\x1d", "\u2028", "\ufeff", "\ud800", "\U0001f600", "\u2019", "é", "中"),
    *("1e999", "-1", "99999", "9" * 400, "NaN", "Infinity", "null", "true", "1.5", "0"),
    *("[" * 3000, "{" * 3000, '{"a":' * 1500, "(" * 500, "'" * 500, "\\" * 500, " " * 3000, "Action: click(" * 200),
    *("'}", '"}', "', '", ", ", "\\'", "\\x41", "\\U0001f600", "None", "//", "\uff0c", "\uff1a", "\u200b", "```json\n"),
    *("__import__('os')", "eval(", "\\u0000", "\\ud800", "{0}", "%s"),
)
DIALECTS: tuple[Dialect, ...] = (
    Native(),
    *(
        kind(coordinates=coordinates, strictness=strictness, several=several)
        for kind in (UiTars, QwenComputerUse, QwenMobileUse, Computer13)
        for coordinates in ("absolute", "relative")
        for strictness, several in (("strict", "first"), ("lenient", "all"))
    ),
)


def answer(rng: random.Random, bases: tuple[str, ...]) -> str:
    """Return an answer of a dialect: one in six as it should be, others with up to five changes."""
    text = rng.choice(bases)
    for _ in range(rng.randrange(6)):
        place = rng.randrange(len(text) + 1)
        match rng.randrange(6):
            case 0:
                text = text[:place]
            case 1:
                text = text[:place] + text[place + rng.randrange(1, 6) :]
            case 2:
                text = text[:place] + rng.choice(PIECES) + text[place:]
            case 3:
                text = text[:place] + rng.choice(rng.choice(list(BASES.values()))) + text[place:]
            case 4:
                text = text[:place] + text[: rng.randrange(len(text) + 1)] + text[place:]
            case 5:
                text = text[:place] + chr(rng.choice((rng.randrange(128), rng.randrange(0x110000)))) + text[place:]
    return text


def check(dialect: Dialect, text: str) -> str:
    """Read an answer; return whether it was ``read`` or ``refused``. AssertionError if what was read is not sound."""
    try:
        reading = dialect.read(text, VIEW)
    except Unparsable as error:
        assert str(error) and error.kind
        return "refused"
    assert reading.actions
    native = isinstance(dialect, Native)
    for action in reading.actions:
        for name, size in (("x", VIEW.width), ("y", VIEW.height), ("to_x", VIEW.width), ("to_y", VIEW.height)):
            assert native or 0 <= getattr(action, name, 0) < size
        keys = action.keys if isinstance(action, Hotkey) else (getattr(action, "key", "a"),)
        assert all(len(key.split()) == 1 for key in keys)
    canonical = format_all(reading.actions)
    assert parse_all(canonical) == reading.actions
    return "read"


def measure(count: int, seed: int) -> dict[str, Any]:
    """Read ``count`` answers, each in a dialect in turn; return what became of them, and examples of wrong ones."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    examples: list[str] = []
    slowest_ms = 0.0
    began = time.perf_counter()
    for number in range(count):
        dialect = DIALECTS[number % len(DIALECTS)]
        text = answer(rng, BASES[type(dialect)])
        started = time.process_time()
        try:
            outcome = check(dialect, text)
        except Exception as error:  # noqa: BLE001 - whatever else is raised is what is looked for
            outcome = "wrong"
            examples.append(f"{dialect}: {text!r}: {error!r}")
        slowest_ms = max(slowest_ms, 1000 * (time.process_time() - started))
        outcomes[f"{type(dialect).__name__} {outcome}"] += 1
    seconds = time.perf_counter() - began
    return {
        "outcomes": dict(sorted(outcomes.items())),
        "examples": examples[:20],
        "slowest_ms": slowest_ms,
        "s": seconds,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(measure(arguments.count, arguments.seed))  # noqa: T201
