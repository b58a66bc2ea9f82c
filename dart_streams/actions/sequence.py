"""The canonical text of the actions that one answer led to; of a single one it is :func:`grammar.format`'s."""

from collections.abc import Sequence

from dart_streams.actions import grammar
from dart_streams.actions.typed import Action, Click, Drag, MouseDown, MouseUp, Move, Scroll

SEPARATOR = "\n\n"
"""Never within a canonical call, whose line breaks are escaped."""


def format_all(actions: Sequence[Action]) -> str:
    """Return the canonical text of actions, in order; :func:`parse_all` is its inverse."""
    return f"Action: {SEPARATOR.join(grammar.call(action) for action in actions)}"


def parse_all(text: str) -> tuple[Action, ...]:
    """Read a canonical text; raise :class:`grammar.Unparsable` if it is none."""
    first, *others = text.split(SEPARATOR)
    return grammar.parse(first), *(grammar.parse(f"Action: {other}") for other in others)


def pointer_after(action: Action) -> tuple[int, int] | None:
    """Return where an action leaves the pointer; None if it does not move it."""
    match action:
        case Drag(_, _, x, y):
            return x, y
        case Click() | Move() | MouseDown() | MouseUp() | Scroll():
            return action.x, action.y
    return None
