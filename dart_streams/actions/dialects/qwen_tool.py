"""The tools of Qwen-VL models: a JSON call between ``<tool_call>`` and ``</tool_call>``.

Qwen2.5-VL writes pixels of its image, Qwen3-VL 0 to 1000.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from dart_streams.actions import typed
from dart_streams.actions.dialects import json_calls, json_reader, qwen_prompt
from dart_streams.actions.dialects.dialect import AnswerBuilder, Dialect, Role, UnsupportedAction, View, written_size
from dart_streams.actions.grammar import Unparsable
from topics.values import OfferedCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
BEGINS = re.compile(rf"\s*+(```[a-z]*\s*+)?(?=[{json_reader.INVISIBLE}]*+[\[{{\uff5b])")
"""Text allowed between the tag and a call."""
ENDS = re.compile(
    rf"(?P<more>[\s}}]*+)(?:```\s*+)?"
    rf"(?:(?P<words>[^{{}}\[\]\"'`<>]*+)(?P<closed>{CLOSE})|(?=[,;]?\s*+(?P<next>{{))|(?={OPEN})|\Z)"
)
"""Text allowed after a call: words without JSON punctuation, the closing tag, or the next call."""


class QwenTool(Dialect, frozen=True, kw_only=True):
    """A dialect whose actions are calls of one tool."""

    tool: ClassVar[qwen_prompt.Tool]

    def _add_actions(self, answer: str, builder: AnswerBuilder) -> None:
        for call in tool_calls(answer, builder):
            if builder.offered and call.get("name") != self.tool.name and isinstance(call.get("name"), str):
                builder.add(json_calls.function_call(call))
            else:
                self._interpret(arguments_of(call, builder, self.tool.name), builder)

    def _interpret(self, arguments: json_calls.Fields, builder: AnswerBuilder) -> None:
        raise NotImplementedError

    def _said(self, action: typed.Action, view: View) -> list[json_calls.Fields]:
        raise NotImplementedError

    def write(self, action: typed.Action, view: View) -> str:
        """Return the answer for ``action``, which may take several calls."""
        if isinstance(action, typed.Call) and action.name not in self.tool.functions:
            calls = [{"name": action.name, "arguments": action.arguments}]
        else:
            calls = [{"name": self.tool.name, "arguments": fields} for fields in self._said(action, view)]
        return "\n".join(f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}" for call in calls)

    def system_messages(
        self, instruction: str, view: View, offered: Sequence[OfferedCall] = ()
    ) -> tuple[tuple[Role, str], ...]:
        """Return the prompt's messages before the first screen, as (role, text)."""
        listed = tuple(one for one in offered if one.name not in self.tool.functions)
        system = qwen_prompt.system_prompt(self.tool.name, *written_size(view, self.coordinates), listed)
        return ("system", system), ("user", instruction)

    def returned_text(self, returned: str) -> str:
        """Return what a call returned in the form of the models' chat template."""
        return f"<tool_response>\n{returned}\n</tool_response>"


class ToolArguments:
    """The arguments of a call, read to an action of the answer."""

    def __init__(self, builder: AnswerBuilder, arguments: json_calls.Fields, tool: qwen_prompt.Tool) -> None:
        self.builder = builder
        self.arguments = arguments
        self.tool = tool

    def action(self, aliases: Mapping[str, str]) -> str:
        """Return the name of the action; ``aliases`` outside the tool's definition are noted."""
        name = json_calls.text_field(self.arguments, "action")
        if (spelled := re.sub(r"[ -]", "_", name.strip().lower())) != name:
            self.builder.note("name", f"the action {name[:80]!r} is spelled {spelled[:80]!r}")
            name = spelled
        if name in aliases:
            self.builder.note("name", f"{name} is not an action of {self.tool.name}: read as {aliases[name]}")
            name = aliases[name]
        if name not in self.tool.actions:
            raise Unparsable(f"unknown action {name[:80]!r}: known are {', '.join(self.tool.actions)}")
        if unknown := sorted(self.arguments.keys() - self.tool.fields - {"start_coordinate"}):
            self.builder.note("argument", f"unknown arguments: {', '.join(unknown)[:80]}")
        return name

    def place(self, needed: bool = False) -> tuple[int, int, bool]:
        """Return the pixel of ``coordinate``, or the pointer's, and whether it is the pointer's."""
        written = self.arguments.get("coordinate")
        if written is None:
            written = json_calls.place_elsewhere(self.arguments, self.tool.fields)
        if written is None and not needed:
            return *self.builder.pointer, True
        return *self.builder.place(json_calls.place_numbers(written, self.builder)), False

    def terminate(self) -> None:
        """Add the end of the episode: success or failure."""
        status = self.arguments.get("status")
        if status not in ("success", "failure"):
            self.builder.note("argument", f"status is success or failure, not {str(status)[:80]!r}")
        self.builder.add(typed.CallUser() if status == "failure" else typed.Finished())


def plain_fields(action: typed.Action, tool: qwen_prompt.Tool) -> json_calls.Fields:
    """Return the arguments of an action that all tools have; raise :class:`UnsupportedAction` for another one."""
    match action:
        case typed.Type(content):
            return {"action": "type", "text": content}
        case typed.Wait():
            return {"action": "wait", "time": 1}
        case typed.Finished(""):
            return {"action": "terminate", "status": "success"}
        case typed.Finished(content):
            return {"action": "answer", "text": content}
        case typed.CallUser():
            return {"action": "terminate", "status": "failure"}
    raise UnsupportedAction(f"the tool {tool.name} has no action for {action}")


PLAIN: dict[str, Callable[[ToolArguments], None]] = {
    "type": lambda call: call.builder.add(typed.Type(json_calls.text_field(call.arguments, "text"))),
    "wait": lambda call: call.builder.add(typed.Wait()),
    "answer": lambda call: call.builder.add(typed.Finished(json_calls.text_field(call.arguments, "text"))),
    "terminate": ToolArguments.terminate,
}
"""The actions that all tools have."""


def tool_calls(answer: str, builder: AnswerBuilder) -> list[json_calls.Fields]:
    """Return the calls of an answer; raise :class:`Unparsable` if there is none or one is ambiguous."""
    opening = answer.find(OPEN)
    if opening < 0:
        builder.note("marker", f"no {OPEN} before the call")
        return json_calls.loose_objects(answer, builder)
    calls: list[json_calls.Fields] = []
    end = 0
    while opening >= 0:
        begin = opening + len(OPEN)
        if begins := BEGINS.match(answer, begin):
            if begins[1]:
                builder.note("marker", "a code fence within the call")
            block, end = objects_in_tags(answer, begins.end(), builder)
            calls += block
        else:
            builder.note("marker", f"{OPEN} without a call after it")
            end = begin
        opening = answer.find(OPEN, end)
    if not calls:
        raise Unparsable(f"no JSON object after {OPEN}: {answer[end : end + 80]!r}")
    if answer[end:].strip():
        builder.note("text", f"words after the call: {answer[end:].strip()[:40]!r}")
    return calls


def objects_in_tags(answer: str, begin: int, builder: AnswerBuilder) -> tuple[list[json_calls.Fields], int]:
    """Return the objects between tags from ``begin`` on, and the offset after them."""
    calls: list[json_calls.Fields] = []
    for value, ends in json_calls.read_values(answer, begin, ENDS, builder):
        calls += json_calls.objects_of(value)
        if len(calls) > 1 or isinstance(value, list):
            builder.note("marker", "a list of calls, or several, between the same tags")
        end, words, closed = ends.end(), ends["words"], ends["closed"]
    if words and words.strip():
        builder.note("text", f"words between the call and {CLOSE}")
    if not closed:
        builder.note("cut", f"no {CLOSE} after the call")
    return calls, end


def arguments_of(call: json_calls.Fields, builder: AnswerBuilder, tool: str) -> json_calls.Fields:
    """Return the arguments of a call of the tool."""
    arguments = call.get("arguments")
    if "action" in call and arguments is None:
        builder.note("argument", f"the arguments are not within a call of {tool}")
        return call
    if arguments is None and "parameters" in call:
        builder.note("argument", "the arguments are named parameters")
        arguments = call["parameters"]
    if isinstance(arguments, str):
        builder.note("argument", "the arguments are a text, not an object")
        listed = json_calls.loose_objects(arguments, builder)
        arguments = listed[0] if len(listed) == 1 else None
    if not isinstance(arguments, dict):
        raise Unparsable(f"a call has no arguments: {str(call)[:80]}")
    if call.get("name") != tool:
        builder.note("name", f"the tool is {tool}, not {str(call.get('name'))[:80]!r}")
    return arguments
