"""The parser of the public package ``ui-tars``, beside which ours reads the answers of ``ui_tars_answers.json``.

``python -m tests.unit.actions.ui_tars_peer`` writes what the installed package makes of them into that file.
"""

import ast
import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dart_streams.actions import typed
from dart_streams.actions.sequence import format_all

ANSWERS = Path(__file__).with_name("ui_tars_answers.json")
SCREEN = (1920, 1080)
SEEN = (1932, 1092)
ARROWS = {"arrowleft": "left", "arrowright": "right", "arrowup": "up", "arrowdown": "down"}


def load() -> dict[str, Any]:
    return json.loads(ANSWERS.read_text())


def peer_reading(answer: str) -> str:
    """Return the canonical text of what the package reads of an answer, or ``refused`` if it raises.

    What its code generator leaves out is left out here: ``nothing`` if that is all.
    """
    from ui_tars.action_parser import parse_action_to_structure_output

    width, height = SCREEN
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            parsed = parse_action_to_structure_output(answer, 1000, height, width)
        actions = [action for item in parsed if (action := action_of(item)) is not None]
    except Exception:  # noqa: BLE001 - it raises whatever its operations do
        return "refused"
    return format_all(actions) if actions else "nothing"


def action_of(item: dict[str, Any]) -> typed.Action | None:
    """Return the action for which the package generates code, as its OSWorld agent also handles wait and call_user."""
    kind, inputs = item["action_type"], item["action_inputs"]
    made: dict[str, Callable[[], typed.Action | None]] = {
        "click": lambda: typed.Click(*place(inputs["start_box"])),
        "left_double": lambda: typed.Click(*place(inputs["start_box"]), count=2),
        "right_single": lambda: typed.Click(*place(inputs["start_box"]), button="right"),
        "hover": lambda: typed.Move(*place(inputs["start_box"])),
        "drag": lambda: drag(inputs),
        "scroll": lambda: scroll(inputs),
        "hotkey": lambda: hotkey(inputs.get("key", inputs.get("hotkey", ""))),
        "press": lambda: typed.KeyDown(ARROWS.get(inputs["key"], inputs["key"])) if inputs.get("key") else None,
        "release": lambda: typed.KeyUp(ARROWS.get(inputs["key"], inputs["key"])) if inputs.get("key") else None,
        "type": lambda: typed.Type(inputs["content"]) if inputs.get("content") else None,
        "finished": lambda: typed.Finished(inputs.get("content", "")),
        "wait": typed.Wait,
        "call_user": typed.CallUser,
    }
    known = {"left_single": "click", "select": "drag", "keydown": "press", "keyup": "release"}
    return made.get(known.get(kind, kind), lambda: None)()


def drag(inputs: dict[str, str]) -> typed.Drag | None:
    if not ("start_box" in inputs and "end_box" in inputs):
        return None
    return typed.Drag(*place(inputs["start_box"]), *place(inputs["end_box"]))


def hotkey(key: str) -> typed.Hotkey | None:
    return typed.Hotkey(tuple(ARROWS.get(key, key).split())) if key else None


def scroll(inputs: dict[str, str]) -> typed.Scroll | None:
    """Return a turn of the wheel: upwards if "up" is in the direction, else downwards if "down" is, else none."""
    found = [direction for direction in ("up", "down") if direction in inputs.get("direction", "").lower()]
    if not found:
        return None
    x, y = place(inputs["start_box"], corner=True) if "start_box" in inputs else (SEEN[0] // 2, SEEN[1] // 2)
    return typed.Scroll(x, y, "up" if found[0] == "up" else "down")


def place(box: str, corner: bool = False) -> tuple[int, int]:
    """Return the pixel of the image that the policy sees of a box in shares of it: its center, or its first corner."""
    x1, y1, x2, y2 = ast.literal_eval(box)
    x, y = (x1, y1) if corner else ((x1 + x2) / 2, (y1 + y2) / 2)
    return round(x * SEEN[0]), round(y * SEEN[1])


if __name__ == "__main__":
    corpus = load()
    for entry in corpus["answers"]:
        entry["peer"] = peer_reading(entry["answer"])
    ANSWERS.write_text(json.dumps(corpus, indent=1, ensure_ascii=False) + "\n")
