"""Calls of offered functions: how each dialect reads them, what it refuses, and what stays as it was without offers."""

import pytest

from dart_streams.actions import Call, Click, Unparsable
from dart_streams.actions.arguments import read_arguments
from dart_streams.actions.dialects import Computer13, Native, QwenComputerUse, UiTars, View
from dart_streams.actions.offered import RETURNED_CHARACTERS, cut_returned, offer_call
from tests.unit.actions.test_dialects import WRITERS

VIEW = View(100, 100)
SCHEMA = {
    "type": "object",
    "properties": {"cell": {"type": "string"}, "value": {"type": ["number", "string"]}},
    "required": ["cell"],
    "additionalProperties": False,
}
OFFERED = (offer_call("calc.set", "Set a cell.\n  Saves nothing.", SCHEMA), offer_call("files.list", "List.", {}))
WANTED = Call("calc.set", {"cell": "B3", "value": 5})
TEXT = """Action: call(name='calc.set', arguments='{"cell": "B3", "value": 5}')"""
QWEN = '<tool_call>\n{"name": "calc.set", "arguments": {"cell": "B3", "value": 5}}\n</tool_call>'
COMPUTER_13 = '```json\n{"action_type": "CALL", "name": "calc.set", "arguments": {"cell": "B3", "value": 5}}\n```'
WRITTEN = [(Native(), TEXT), (UiTars(), f"Thought: a\n{TEXT}"), (QwenComputerUse(), QWEN), (Computer13(), COMPUTER_13)]


@pytest.mark.parametrize(("dialect", "answer"), WRITTEN, ids=lambda value: type(value).__name__)
def test_a_call_is_read_where_it_is_offered_and_refused_where_not(dialect, answer):
    assert dialect.read(answer, VIEW, OFFERED).actions == (WANTED,)
    with pytest.raises(Unparsable):
        dialect.read(answer, VIEW)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (Call("calc.sett", {"cell": "B3"}), "unknown function 'calc.sett': offered are calc.set, files.list"),
        (Call("calc.set", {}), "the arguments of calc.set: 'cell' is a required property"),
        (Call("calc.set", {"cell": 3}), r"the arguments\['cell'\] of calc.set: 3 is not of type 'string'"),
        (Call("calc.set", {"cell": "A1", "row": 1}), "Additional properties are not allowed"),
    ],
    ids=lambda value: value.name if isinstance(value, Call) else None,
)
@pytest.mark.parametrize("dialect", WRITERS, ids=repr)
def test_a_call_that_does_not_fit_is_an_error_of_the_answer(dialect, call, why):
    with pytest.raises(Unparsable, match=why) as error:
        dialect.read(dialect.write(call, VIEW), VIEW, OFFERED)
    assert error.value.kind == "call"


@pytest.mark.parametrize(
    "cell",
    [
        {"$ref": "#/$defs/Cell"},
        {"$ref": "https://schemas.invalid/cell.json"},
        {"$ref": "#/properties/cell"},
        {"$dynamicRef": "#cell"},
        {"$ref": "#/cells/first"},
        {"$ref": "#/cells/second"},
        {"multipleOf": 0.1},
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_applied_is_an_error_of_the_answer(cell):
    schema = {"properties": {"cell": cell}, "cells": {"first": 5, "second": {"type": "cell"}}}
    call = Call("calc.set", {"cell": 10**400})
    with pytest.raises(Unparsable, match=r"the schema of calc\.set cannot be applied: \w+: ") as error:
        Native().read(Native().write(call, VIEW), VIEW, (offer_call("calc.set", "", schema),))
    assert error.value.kind == "call"


@pytest.mark.parametrize(
    "arguments",
    ["", "[]", "5", "{", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\\\ud800"}', "{" * 5000, '{"a": ' + "9" * 5000 + "}"],
    ids=lambda text: text[:12],
)
def test_arguments_are_a_json_object_that_a_record_can_hold(arguments):
    answer = f"Action: call(name='files.list', arguments='{arguments}')"
    if not arguments:
        assert UiTars().read(answer, VIEW, OFFERED).actions == (Call("files.list", {}),)
        return
    for dialect in (Native(), UiTars()):
        with pytest.raises(Unparsable):
            dialect.read(answer, VIEW, OFFERED)


def test_line_breaks_and_apostrophes_in_arguments_are_read():
    answer = """Action: call(name='files.list', arguments='{"text": "it's\\nfine", "more": 'x'}')"""
    with pytest.raises(Unparsable):
        UiTars().read(answer, VIEW, OFFERED)
    answer = """Action: call(name='files.list', arguments='{"text": "it's\\nfine"}')"""
    assert UiTars().read(answer, VIEW, OFFERED).actions == (Call("files.list", {"text": "it's\nfine"}),)
    assert read_arguments('{"a": "b\nc"}') == {"a": "b\nc"}


@pytest.mark.parametrize("dialect", WRITERS, ids=repr)
def test_prompts_list_what_is_offered_and_else_are_as_before(dialect):
    plain, offering = dialect.system_messages("Do it.", VIEW), dialect.system_messages("Do it.", VIEW, OFFERED)
    assert plain == dialect.system_messages("Do it.", VIEW, ())
    before, after = ("\n".join(text for _, text in messages) for messages in (plain, offering))
    assert "calc.set" not in before
    assert [role for role, _ in plain] == [role for role, _ in offering]
    for words in ("calc.set", "Set a cell.", '"required"', "files.list", "Do it."):
        assert words in after
    at, to = (
        next(n for n, pair in enumerate(zip(x, y, strict=False)) if pair[0] != pair[1])
        for x, y in ((before, after), (before[::-1], after[::-1]))
    )
    assert at + to >= len(before) - 2, "offers are put in at one place"


def test_without_offers_the_word_call_is_nothing_new():
    with pytest.raises(Unparsable, match=r"unknown action 'call': known are click, .*, finished, call_user$"):
        Native().read(TEXT, VIEW)
    answer = "Thought: I call(name='x') it.\nAction: click(start_box='(1,2)')"
    assert UiTars().read(answer, VIEW).actions == (Click(1, 2),)


def test_what_is_returned_is_cut_with_a_mark():
    assert cut_returned("a" * RETURNED_CHARACTERS) == "a" * RETURNED_CHARACTERS
    cut = cut_returned("a" * (RETURNED_CHARACTERS + 1))
    assert len(cut) == RETURNED_CHARACTERS
    assert cut.endswith("… (cut)")
    assert QwenComputerUse().returned_text("7") == "<tool_response>\n7\n</tool_response>"
    assert UiTars().returned_text("7") == "Returned: 7"
