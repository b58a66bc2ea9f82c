"""UI-TARS models: ``Thought: …``, then ``Action: click(start_box='(x,y)')``.

UI-TARS-1.5 writes pixels of its image, earlier models 0 to 1000. ``press`` and ``release`` hold keys. Actions that
these models lack are written as in :mod:`dart_streams.actions.grammar`.
"""

import re
from collections.abc import Collection, Sequence

import msgspec

from dart_streams.actions import grammar, keys, typed
from dart_streams.actions.dialects import ui_tars_prompts
from dart_streams.actions.dialects.calls import Parameters, Scanner, WrittenCall
from dart_streams.actions.dialects.dialect import (
    FULL_WIDTH,
    TAGS,
    AnswerBuilder,
    Dialect,
    Place,
    Role,
    View,
    split_keys,
    written_numbers,
    written_place,
)
from dart_streams.actions.dialects.ui_tars_prompts import Style
from dart_streams.actions.grammar import GRAMMAR, Grammar, Unparsable
from dart_streams.actions.offered import list_calls
from topics.values import OfferedCall

BOX_TOKENS = ("<|box_start|>", "<|box_end|>")
PLAIN_BOX = re.compile(r"\b(start_box|end_box)='(\([0-9]{1,5},\s?[0-9]{1,5}\))'")
PARAMETER_ALIASES = {"point": "start_box", "start_point": "start_box", "end_point": "end_box", "hotkey": "key"}


class UiTars(Dialect, frozen=True, kw_only=True):
    """Dialect ``ui-tars``; ``prompt`` is its coordinate format, and both formats are read.

    The prompt ``mobile`` has a phone's actions. A long press is a click of the right button, and ``open_app`` calls the
    function of that name, which the environment has to offer.
    """

    prompt: Style = "point"
    language: str = "English"
    tokens: tuple[str, ...] = BOX_TOKENS
    separate: bool = True

    def _add_actions(self, answer: str, builder: AnswerBuilder) -> None:
        known = GRAMMARS[self.prompt]
        names: Collection[str] = known
        parameters, texts = PARAMETERS[self.prompt], TEXTS
        if builder.offered:
            names, parameters = [*known, grammar.CALL_NAME], parameters | CALL_PARAMETERS
            texts += ("arguments",)
        for call in Scanner(answer, parameters, names, texts, builder.note).calls():
            if call.name == grammar.CALL_NAME:
                builder.add(grammar.build_call(call.arguments))
            else:
                InterpretedCall(builder, call, known).add()

    def write(self, action: typed.Action, view: View) -> str:
        """Return the answer for ``action``, without a thought."""
        mobile = self.prompt == "mobile"
        if isinstance(action, typed.Call):
            return (mobile and write_touch(action)) or grammar.format(action)
        changed = {
            names: written_place(getattr(action, names[0]), getattr(action, names[1]), view, self.coordinates)
            for names in (("x", "y"), ("to_x", "to_y"))
            if hasattr(action, names[0])
        }
        placed = {name: value for names, place in changed.items() for name, value in zip(names, place, strict=True)}
        action = msgspec.structs.replace(action, **placed) if placed else action
        text = (mobile and write_touch(action)) or grammar.format(action)
        return self.history_text(text) if self.prompt == "box" else in_points(text)

    def system_messages(
        self, instruction: str, view: View, offered: Sequence[OfferedCall] = ()
    ) -> tuple[tuple[Role, str], ...]:
        """Return the prompt's messages before the first screen, as published for UI-TARS-1.5."""
        return ("system", ui_tars_prompts.SYSTEM), (
            "user",
            ui_tars_prompts.user_prompt(self.prompt, self.language, instruction, list_calls(self._listed(offered))),
        )

    def _listed(self, offered: Sequence[OfferedCall]) -> Sequence[OfferedCall]:
        """Return the functions that the prompt lists: those without an action of their own."""
        return [one for one in offered if self.prompt != "mobile" or one.name not in MOBILE]

    def history_text(self, answer: str) -> str:
        """Return an earlier answer with the tokens around its boxes, which decoding may have dropped."""
        return PLAIN_BOX.sub(r"\1='<|box_start|>\2<|box_end|>'", answer) if self.prompt == "box" else answer


class InterpretedCall(grammar.CallArguments):
    """Converts a call to an action of the answer; coordinates default to the pointer."""

    def __init__(self, builder: AnswerBuilder, call: WrittenCall, known: Grammar) -> None:
        super().__init__({})
        self.builder = builder
        self.call = call
        self.known = known

    def add(self) -> None:
        """Add the action; raise :class:`Unparsable` if an argument is missing."""
        name = self.call.name
        if name in LOOSE_NAMES:
            self.builder.note("name", f"{name} is not a UI-TARS action: read as {LOOSE_NAMES[name]}")
            name = LOOSE_NAMES[name]
        meant = NAMES.get(name, name)
        parameters, optional, build = self.known[meant]
        for key, value in self.call.arguments.items():
            key = PARAMETER_ALIASES.get(key, key)
            if key not in parameters:
                self.builder.note("argument", f"{name} takes {list(parameters)}, not {key!r}")
            elif value or key == "content":
                self.given[key] = value
        if "start_box" in parameters and "start_box" not in self.given and (place := self.place_elsewhere()):
            self.given["start_box"] = place
        optional += ("start_box",) if meant in AT_POINTER else ()
        if missing := [key for key in parameters if key not in self.given and key not in optional]:
            raise Unparsable(f"{name} lacks {', '.join(missing)}")
        self.builder.add(build(self))

    def place_elsewhere(self) -> str:
        """Return coordinates given under other names, empty if there are none."""
        given = self.call.arguments
        if {"x", "y"} <= given.keys():
            return f"({given['x']},{given['y']})"
        places = [value for key, value in given.items() if key not in self.given and written_numbers(value)]
        return places[0] if len(places) == 1 else ""

    def place(self, key: str = "start_box") -> Place:
        """Return the pixel of coordinates or of a box's center; the pointer's if they are not given."""
        if key not in self.given:
            return self.builder.pointer
        written = self.given[key]
        numbers = written_numbers(written)
        if numbers is None:
            raise Unparsable(f"not a place like (x,y) or <point>x y</point>: {written[:80]!r}", "place")
        tagged = TAGS.search(written) is not None
        if (
            written.count("<point>") != written.count("</point>")
            or not (tagged or "," in written)
            or (written != written.translate(FULL_WIDTH))
        ):
            self.builder.note("place", f"not quite a place: {written[:80]!r}")
        return self.builder.place(numbers)

    def keys(self) -> tuple[str, ...]:
        """Return the keys of a combination, written ``ctrl c`` or ``ctrl+c``."""
        names = split_keys(self.text("key"))
        if len(names) == 1 and "-" in names[0][1:-1] and (apart := split_hyphens(names[0])):
            self.builder.note("key", f"keys of a combination are apart by a space: {names[0][:80]!r}")
            return apart
        return names

    def held(self, action: type[typed.KeyDown] | type[typed.KeyUp]) -> typed.Action:
        """Return the press or release of a key; several keys become a combination."""
        names = self.keys()
        if len(names) == 1:
            return action(names[0])
        self.builder.note("key", f"{self.call.name} takes one key: {self.text('key')[:80]!r}")
        return typed.Hotkey(names)

    def amount(self) -> int | None:
        """Return the notches of a scroll within the possible ones."""
        return self.builder.amount(grammar.parse_number(self.given["amount"], 9999)) if "amount" in self.given else None


def parameters_of(known: Grammar) -> dict[str, Parameters]:
    """Return all readable names of a grammar's actions, with all aliases of their parameters."""
    means = {name: name for name in known} | NAMES | LOOSE_NAMES
    return {
        name: known[meant][0] + tuple(other for other, key in PARAMETER_ALIASES.items() if key in known[meant][0])
        for name, meant in means.items()
    }


def split_hyphens(name: str) -> tuple[str, ...] | None:
    """Return the keys of ``ctrl-c``; None for a key name with a hyphen."""
    parts = tuple(part for part in name.split("-") if part)
    known = keys.canonical_name(name) in keys.NAMED or keys.canonical_name(parts[0]) not in keys.MODIFIERS
    return None if known else parts


def in_points(text: str) -> str:
    """Return a canonical answer with boxes as ``<point>x y</point>``."""
    name = "point" if "end_box=" not in text else "start_point"
    for box, point in (("start_box", name), ("end_box", "end_point")):
        text = re.sub(rf"\b{box}='\((-?\d+),(-?\d+)\)'", rf"{point}='<point>\1 \2</point>'", text, count=1)
    return text


def write_touch(action: typed.Action) -> str:
    """Return the answer for an action that phones have an own form of, empty for another one."""
    match action:
        case typed.Click(x, y, "right", 1):
            return f"Action: {grammar.write_call('long_press', f'({x},{y})')}"
        case typed.Hotkey((name,)) if name in PHONE_BUTTONS:
            return f"Action: {PHONE_BUTTONS[name]}()"
        case typed.Call("open_app", {"app_name": str(name)}):
            return f"Action: {grammar.write_call('open_app', app_name=name)}"
    return ""


PHONE_BUTTONS = {"home": "press_home", "back": "press_back"}
"""Buttons of a phone, by their key."""
MOBILE: Grammar = GRAMMAR | {
    "long_press": (("start_box",), (), grammar.click_builder("right", 1)),
    "open_app": (("app_name",), (), lambda call: typed.Call("open_app", {"app_name": call.text("app_name")})),
    "press_home": ((), (), lambda _: typed.Hotkey(("home",))),
    "press_back": ((), (), lambda _: typed.Hotkey(("back",))),
}
"""The grammar with the actions of a phone."""
AT_POINTER = ("mouse_down", "mouse_up", "scroll")
"""Actions that may lack coordinates."""
NAMES = {
    "left_single": "click",
    "hover": "move",
    "move_to": "move",
    "select": "drag",
    "keydown": "press",
    "keyup": "release",
    "error_env": "call_user",
}
"""Aliases of the models' own parser."""
LOOSE_NAMES = {
    "left_click": "click",
    "double_click": "left_double",
    "left_double_click": "left_double",
    "triple_click": "left_triple",
    "right_click": "right_single",
    "middle_click": "middle_single",
    "mouse_move": "move",
    "key_down": "press",
    "key_up": "release",
    "key": "hotkey",
    "input": "type",
    "finish": "finished",
    "done": "finished",
    "fail": "call_user",
}
"""Aliases that the models should not write."""
GRAMMARS: dict[Style, Grammar] = {"point": GRAMMAR, "box": GRAMMAR, "mobile": MOBILE}
PARAMETERS = {style: parameters_of(known) for style, known in GRAMMARS.items()}
"""Parameters of all readable names, for each prompt."""
CALL_PARAMETERS = {grammar.CALL_NAME: grammar.CALL_PARAMETERS}
TEXTS: tuple[str, ...] = ("content",)
