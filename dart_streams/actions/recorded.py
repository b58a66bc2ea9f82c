"""Recorded answers, and whether an action is the recorded one. Pure."""

from collections.abc import Sequence

import msgspec

from dart_streams.actions.typed import Action, Finished

PLACES = frozenset(("x", "y", "to_x", "to_y"))
"""Fields with a coordinate (pixels)."""


class RecordedAnswer(msgspec.Struct, frozen=True):
    """An answer of a recorded trajectory, and its actions in pixels of the policy's image."""

    text: str
    actions: tuple[Action, ...]


def is_same_action(action: Action, recorded: Action, bound: int) -> bool:
    """Return whether two actions are of one kind, with equal fields, and with places at most ``bound`` pixels apart.

    The bound holds for x and for y: the recorded place is the center of a box. The words of ``finished`` do not count.
    """
    if type(action) is not type(recorded):
        return False
    if isinstance(action, Finished):
        return True
    pairs = {name: (getattr(action, name), getattr(recorded, name)) for name in action.__struct_fields__}
    return all(abs(own - other) <= bound if name in PLACES else own == other for name, (own, other) in pairs.items())


def are_same_actions(actions: Sequence[Action], recorded: Sequence[Action], bound: int) -> bool:
    """Return whether the actions of an answer are the recorded ones, in order."""
    return len(actions) == len(recorded) and all(
        is_same_action(*pair, bound) for pair in zip(actions, recorded, strict=True)
    )
