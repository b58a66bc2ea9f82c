"""Shapes of answers that models were seen to write: read leniently where they have one meaning, refused strictly."""

import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dart_streams.actions import Click, Drag, Finished, Hotkey, Move, Scroll, Type, Unparsable, Wait
from dart_streams.actions.dialects import Computer13, Dialect, Native, QwenComputerUse, UiTars, View
from tests.sources import ROOT
from tests.unit.actions import long_answers

VIEW = View(1288, 728, (7, 8))
QWEN = QwenComputerUse(strictness="lenient", several="all")
COMPUTER_13 = Computer13(strictness="lenient", several="all")
UI_TARS = UiTars(strictness="lenient", several="all")
CLICK = Click(10, 20)
CALL = '{"name": "computer_use", "arguments": %s}'
WAIT = CALL % '{"action": "wait"}'
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def tagged(inside: str) -> str:
    return f"Action: do it.\n<tool_call>\n{inside}\n</tool_call>"


def at(coordinate: str) -> str:
    return tagged(CALL % f'{{"action": "left_click", "coordinate": {coordinate}}}')


def typed(written: str) -> str:
    return tagged(CALL % f'{{"action": "type", "text": {written}}}')


def block(inside: str) -> str:
    return f"```json\n{inside}\n```"


def kinds(dialect: Dialect, answer: str) -> set[str]:
    return {wrong.kind for wrong in dialect.read(answer, VIEW).wrong}


ONE_MEANING = [
    (QWEN, typed('"a\nb\tc"'), Type("a\nb\tc"), {"json"}),
    (QWEN, typed('"say "hello" now"'), Type('say "hello" now'), {"quotes"}),
    (QWEN, typed('"a", b"'), Type('a", b'), {"quotes"}),
    (QWEN, typed('"x["a"] = f("b")"'), Type('x["a"] = f("b")'), {"quotes"}),
    (QWEN, typed(r'"C:\Program Files"'), Type(r"C:\Program Files"), {"json"}),
    (QWEN, typed('"a </tool_call>\n b"'), Type("a </tool_call>\n b"), {"json"}),
    (QWEN, at('"[10, 20]"'), CLICK, {"place"}),
    (QWEN, at('["10", "20"]'), CLICK, {"place", "argument"}),
    (QWEN, at('"(10, 20)"'), CLICK, {"place"}),
    (QWEN, at("(10, 20)"), CLICK, {"json"}),
    (QWEN, at("[[10, 20]]"), CLICK, {"place"}),
    (QWEN, at('["10, 20"]'), CLICK, {"place"}),
    (QWEN, at("[[5, 10], [15, 30]]"), CLICK, {"place"}),
    (QWEN, at('{"x": 10, "y": 20}'), CLICK, {"place"}),
    (QWEN, at('"<|box_start|>(10,20)<|box_end|>"'), CLICK, {"place"}),
    (QWEN, at('"\uff0810\uff0c20\uff09"'), CLICK, {"place"}),
    (QWEN, at("[010, 020]"), CLICK, {"json"}),
    (QWEN, at("[10, 20,]"), CLICK, {"json"}),
    (QWEN, at("[10, 20"), CLICK, {"cut"}),
    (QWEN, tagged(WAIT).replace("</", "<"), Wait(), {"cut", "marker"}),
    (QWEN, at("[10, 20],"), CLICK, {"json"}),
    (QWEN, at("[10, 20]}"), CLICK, {"json"}),
    (QWEN, tagged(CALL[:-1] % '{"action": "wait"}'), Wait(), {"cut"}),
    (QWEN, tagged(WAIT.replace('"', "'")), Wait(), {"quotes"}),
    (QWEN, tagged(WAIT.replace(":", "\uff1a").replace(",", "\uff0c")), Wait(), {"json"}),
    (QWEN, tagged(WAIT.replace('"name"', "name")), Wait(), {"quotes"}),
    (QWEN, tagged(WAIT.replace('"name"', '// the tool\n"name"')), Wait(), {"json"}),
    (QWEN, tagged(WAIT.replace('use", ', 'use" ')), Wait(), {"json"}),
    (QWEN, tagged("\u200b" + WAIT), Wait(), {"json"}),
    (QWEN, tagged(f"[{WAIT}]"), Wait(), {"marker"}),
    (QWEN, tagged(f"```json\n{WAIT}\n```"), Wait(), {"marker"}),
    (QWEN, tagged(f"{WAIT} I wait."), Wait(), {"text"}),
    (QWEN, "I use <tool_call> now.\n" + tagged(WAIT), Wait(), {"marker"}),
    (QWEN, tagged('{"name": "computer_use", "parameters": {"action": "wait"}}'), Wait(), {"argument"}),
    (QWEN, tagged(CALL % json.dumps('{"action": "wait"}')), Wait(), {"argument"}),
    (QWEN, tagged(CALL % '{"action": "Left Click", "coordinate": [10, 20]}'), CLICK, {"name"}),
    (QWEN, tagged(CALL % '{"action": "left_click", "x": 10, "y": 20}'), CLICK, {"argument"}),
    (QWEN, tagged(CALL % '{"action": "left_click", "position": [10, 20]}'), CLICK, {"argument"}),
    (QWEN, tagged(CALL % '{"action": "left_click", "why": "so"}'), Click(7, 8), {"argument"}),
    (QWEN, tagged(CALL % '{"action": "scroll", "pixels": "-5"}'), Scroll(7, 8, "down", 5), {"argument"}),
    (QWEN, tagged(CALL % '{"action": "key", "text": "ctrl+c"}'), Hotkey(("ctrl", "c")), {"key"}),
    (
        QWEN,
        tagged(CALL % '{"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4]}'),
        Drag(1, 2, 3, 4),
        {"argument"},
    ),
    (COMPUTER_13, block('{"action_type": "TYPING", "text": "```\nx\n```"}'), Type("```\nx\n```"), {"json"}),
    (COMPUTER_13, block("{'action_type': 'CLICK', 'x': 10, 'y': 20}"), CLICK, {"quotes"}),
    (COMPUTER_13, block('{"action_type": "CLICK", "x": "10", "y": "20"}'), CLICK, {"argument"}),
    (COMPUTER_13, block('{"action_type": "CLICK", "coordinate": [10, 20]}'), CLICK, {"argument"}),
    (COMPUTER_13, block('{"action_type": "CLICK", "x": 10, "y": 20,}'), CLICK, {"json"}),
    (COMPUTER_13, block('{"action_type": "CLICK", "x": 10, "y": 20'), CLICK, {"cut"}),
    (COMPUTER_13, "```python\n" + block('{"action_type": "WAIT"}')[8:], Wait(), {"marker"}),
    (COMPUTER_13, "```bash\nls\n```\n" + block('{"action_type": "WAIT"}'), Wait(), {"text"}),
    (COMPUTER_13, '{"action_type": "TYPING", "text": "say "hi""}', Type('say "hi"'), {"quotes"}),
    (COMPUTER_13, "\ufeffDONE", Finished(), {"text"}),
    (UI_TARS, "Action\uff1aclick(start_box='(10,20)')", CLICK, {"marker"}),
    (UI_TARS, "**Action:** click(start_box='(10,20)')", CLICK, {"marker"}),
    (UI_TARS, "Action: click\uff08start_box='\uff0810\uff0c20\uff09'\uff09", CLICK, {"argument", "place"}),
    (UI_TARS, "Action: click(start_box=\u201c(10,20)\u201d)", CLICK, {"quotes"}),
    (UI_TARS, "\ufeffThought: x\nAction: click(start_box='(10,20)')", CLICK, {"text"}),
    (UI_TARS, "Action: click(x=10, y=20)", CLICK, {"argument", "quotes"}),
    (UI_TARS, "Action: scroll(at='(10,20)', direction='up')", Scroll(10, 20, "up"), {"argument"}),
    (UI_TARS, "Action: click(start_box='<|box_start|>(10,20)<|box_end|>'", CLICK, {"cut"}),
]
SEVERAL_MEANINGS = [
    (QWEN, at("[0.5, 0.25]"), "share"),
    (QWEN, at('["50%", "20%"]'), "not a number"),
    (QWEN, at('"50% 20%"'), "not a list of two numbers"),
    (QWEN, at("[10 20]"), "not JSON"),
    (QWEN, at("[10]"), "not a list of two numbers"),
    (QWEN, at("[true, 20]"), "not a number"),
    (QWEN, at("[NaN, 20]"), "not a number"),
    (QWEN, at("[1e999, 20]"), "not a number"),
    (QWEN, typed(r'"C:\Users\new"'), "backslashes"),
    (QWEN, typed(r'"\ud83d"'), "surrogate"),
    (QWEN, typed('"a", "text": "b"'), "given twice"),
    (QWEN, typed('"a "} {b"'), "not JSON"),
    (QWEN, typed('"a "} b"'), "not JSON"),
    (QWEN, tagged(CALL % json.dumps('{"action": "wait"} {"action": "wait"}')), "no arguments"),
    (QWEN, tagged(CALL % '"[]"'), "no JSON object"),
    (QWEN, "<tool_call>" + CALL[:-1] % '{"action": "left_click", "coordinate": [10, 20]}', "cut off"),
    (QWEN, "<tool_call>" + (CALL % '{"action": "left_click", "coordinate": [10, 2')[:-1], "cut off"),
    (QWEN, '<tool_call>{"name": "computer_use", "arguments": {"action": "type", "text": "rm -rf /', "cut off"),
    (QWEN, tagged("<function=computer_use><parameter=action>wait</parameter></function>"), "no JSON object"),
    (COMPUTER_13, '```json\n{"action_type": "CLICK", "x": 10, "y": 2', "cut off"),
    (COMPUTER_13, '```json\n{"action_type": "TYPING", "text": "rm -rf /', "cut off"),
    (QWEN, tagged(CALL % '{"action": "left_click", "where": [10, 20]}'), "a place may be among where"),
    (COMPUTER_13, block('{"action_type": "CLICK", "where": {"left": 1}}'), "a place may be among where"),
    (UI_TARS, "Action: hotkey(key='ctrl', 'c')", "quotes within"),
    (UI_TARS, "Action: type(content='rm -rf /tmp/x", "cut off"),
    (UI_TARS, "Action: click(start_box='(10,2", "cut off"),
    (UI_TARS, "Action: click(start_box='<point>10 2", "cut off"),
    (UI_TARS, "Action: hotkey(key='ctrl sh", "cut off"),
    (UI_TARS, "Action: click(start_box='(0.5,0.25)')", "share"),
    (UI_TARS, "Action: click(start_box='50% 20%')", "not a place"),
]


@pytest.mark.parametrize(("dialect", "answer", "action", "wrong"), ONE_MEANING)
def test_what_has_one_meaning_is_read_leniently_and_refused_strictly(dialect, answer, action, wrong):
    reading = dialect.read(answer, VIEW)
    assert (reading.actions, {wrong.kind for wrong in reading.wrong}) == ((action,), wrong)
    with pytest.raises(Unparsable):
        type(dialect)(several="all").read(answer, VIEW)


@pytest.mark.parametrize(("dialect", "answer", "why"), SEVERAL_MEANINGS)
def test_what_has_more_meanings_or_was_cut_off_is_refused_even_leniently(dialect, answer, why):
    with pytest.raises(Unparsable, match=why):
        dialect.read(answer, VIEW)


def test_several_calls_between_the_same_tags_are_all_read():
    answer = tagged(WAIT + "\n" + CALL % '{"action": "mouse_move", "coordinate": [1, 2]}')
    assert QWEN.read(answer, VIEW).actions == (Wait(), Move(1, 2))
    assert kinds(QWEN, answer) == {"marker"}


@pytest.mark.parametrize(
    "dialect", [QwenComputerUse(), Computer13(), UiTars(), UiTars(prompt="box"), UiTars(prompt="mobile")], ids=repr
)
@pytest.mark.parametrize("text", ["</tool_call>", "<tool_call>", "```", "```json\n{}\n```", "\\n", "'}\"}", "\t\r\n"])
def test_a_text_may_hold_what_ends_a_call_even_strictly(dialect, text):
    assert dialect.read(dialect.write(Type(text), VIEW), VIEW).actions == (Type(text),)


@given(texts)
@example("it's")
@example('"')
@example("\x1b \xa0 \U0001f600")
def test_a_call_as_python_writes_it_means_the_same(text):
    call = {"name": "computer_use", "arguments": {"action": "type", "text": text}}
    assert QWEN.read(tagged(str(call)), VIEW).actions == (Type(text),)
    assert COMPUTER_13.read(block(str({"action_type": "TYPING", "text": text})), VIEW).actions == (Type(text),)


@given(texts)
def test_a_text_with_its_line_breaks_as_they_are_means_the_same(text):
    escaped = json.dumps(text, ensure_ascii=False)
    written = escaped.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\\\")
    assert QWEN.read(typed(written), VIEW).actions == (Type(text),)


@pytest.mark.parametrize("dialect", [Native(), UiTars(), QwenComputerUse(), Computer13()], ids=repr)
def test_a_thought_is_as_long_as_max_tokens_lets_it_be(dialect):
    """A dialect has no bound of its own: 200,000 characters are some 50,000 tokens."""
    answer = f"Thought: {'I look. ' * 25_000}\n{dialect.write(CLICK, VIEW)}"
    assert dialect.read(answer, VIEW).actions == (CLICK,)


def test_a_long_answer_is_read_once():
    """Read again from each of their parts, these answers would take days."""
    program = [sys.executable, "-m", "tests.unit.actions.long_answers"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    assert int(done.stdout) == len(long_answers.RISKY) * len(long_answers.LENIENT)
