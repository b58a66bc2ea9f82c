"""Coordinates between the image the policy sees and the screen: pixel centres keep their relative place."""

import msgspec

from dart_streams.actions import Action

Size = tuple[int, int]
"""Width and height in pixels."""

AXES = {"x": 0, "to_x": 0, "y": 1, "to_y": 1}


def rescale(action: Action, source: Size, target: Size) -> Action:
    """Return ``action``, given in pixels of an image of size ``source``, in pixels of one of size ``target``.

    What lies outside the source lands on the target's edge. Actions without coordinates come back as they are.
    """
    moved = {
        field: rescale_coordinate(getattr(action, field), source[axis], target[axis])
        for field, axis in AXES.items()
        if hasattr(action, field)
    }
    return msgspec.structs.replace(action, **moved) if moved else action


def rescale_coordinate(value: int, source: int, target: int) -> int:
    """Return the pixel of an axis of ``target`` pixels that has the centre of pixel ``value`` of ``source``."""
    return min(max((2 * value + 1) * target // (2 * source), 0), target - 1)
