"""The contract of actions: what a page or program must receive of each action, the same on every backend.

A backend shows that it keeps it by :class:`~workers.env.environment.ProbeEnvironment`.
"""

from collections.abc import Iterable
from typing import Any

from dart_streams.actions import keys, typed
from dart_streams.actions.typed import Action, Button, Direction

Received = list[Any]
"""An input: ``press`` (button, x, y, how many times in a row), ``release`` (button, x, y), ``move`` (x, y), ``scroll``
(direction, notches, x, y), ``down`` or ``up`` (a key, in any spelling that :mod:`dart_streams.actions.keys` knows)."""


def make_clicks(x: int, y: int, button: Button = "left", count: int = 1) -> list[Received]:
    """Return the inputs of a click."""
    return [one for times in range(count) for one in (["press", button, x, y, times + 1], ["release", button, x, y])]


def make_strokes(*names: str) -> list[Received]:
    """Return the inputs of keys that are pressed one after the other."""
    return [[kind, name] for name in names for kind in ("down", "up")]


BUTTONS: tuple[Button, ...] = ("left", "middle", "right")
DIRECTIONS: tuple[Direction, ...] = ("up", "down", "left", "right")
CONTRACT: tuple[tuple[tuple[Action, ...], list[Received]], ...] = (
    ((typed.Move(30, 60),), [["move", 30, 60]]),
    *(
        ((typed.Click(30 * count, 30 * row, button, count),), make_clicks(30 * count, 30 * row, button, count))
        for row, button in enumerate(BUTTONS, 2)
        for count in (1, 2, 3)
    ),
    *(
        (sequence, [["press", button, 30, 60, 1], ["release", button, 90, 120]])
        for button in BUTTONS
        for sequence in (
            (typed.Drag(30, 60, 90, 120, button),),
            (typed.MouseDown(30, 60, button), typed.Move(60, 90), typed.MouseUp(90, 120, button)),
        )
    ),
    *(((typed.Scroll(60, 60, towards, 2),), [["scroll", towards, 2, 60, 60]]) for towards in DIRECTIONS),
    ((typed.Hotkey(("ctrl", "A")),), [["down", "ctrl"], *make_strokes("a"), ["up", "ctrl"]]),
    ((typed.Hotkey(("Return",)), typed.Hotkey(("no such key",))), make_strokes("enter")),
    (
        (typed.KeyDown("ctrl"), typed.Click(90, 90), typed.KeyUp("ctrl")),
        [["down", "ctrl"], *make_clicks(90, 90), ["up", "ctrl"]],
    ),
    ((typed.KeyDown("shift"), typed.Type("a"), typed.KeyUp("shift")), make_strokes("A")),
    ((typed.Type("Ab1!\tc\r\nd\n"),), make_strokes(*"Ab1!", "tab", "c", "enter", "d", "enter")),
    ((typed.Wait(),), []),
)
"""Actions, and what is received of them; Shift is left out, and so are moves to where something happens."""


def normalize_inputs(received: Iterable[Received]) -> list[Received]:
    """Return inputs as the contract has them, whatever moves and spellings of keys there are."""
    seen: list[Received] = []
    for kind, *rest in received:
        if kind in {"down", "up"}:
            rest = [keys.canonical_name(rest[0])]
        if rest == ["shift"]:
            continue
        before = seen[-1] if seen else [""]
        if before[0] == "move" and (kind == "move" or before[1:] == rest[1:3] or before[1:] == rest[2:4]):
            seen.pop()
        if kind == before[0] == "scroll" and before[1] == rest[0]:
            before[2] += rest[1]
        else:
            seen.append([kind, *rest])
    return seen
