"""Canonical text of the actions of one answer."""

from collections.abc import Sequence

from dart_streams.actions import grammar
from dart_streams.actions.typed import Action, Click, Drag, MouseDown, MouseUp, Move, Scroll

SEPARATOR = "\n\n"
"""Never part of a canonical call, whose line breaks are escaped."""


def format_all(actions: Sequence[Action]) -> str:
    """Return the canonical text of actions; :func:`parse_all` is its inverse."""
    return f"Action: {SEPARATOR.join(grammar.call(action) for action in actions)}"


def parse_all(text: str) -> tuple[Action, ...]:
    """Parse a canonical text; raise :class:`grammar.Unparsable` if it is invalid."""
    first, *others = text.split(SEPARATOR)
    return grammar.parse(first), *(grammar.parse(f"Action: {other}") for other in others)


def parse_written(text: str) -> Action:
    """Parse one action, with or without ``Action:``; raise :class:`grammar.Unparsable`."""
    return grammar.parse(f"Action: {text.strip().removeprefix('Action: ')}")


def pointer_after(action: Action) -> tuple[int, int] | None:
    """Return the pointer's position after an action; None if it does not move."""
    match action:
        case Drag(_, _, x, y):
            return x, y
        case Click() | Move() | MouseDown() | MouseUp() | Scroll():
            return action.x, action.y
    return None
