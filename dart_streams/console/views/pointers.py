"""The points of actions on the screen that they were decided on. Pure."""

import msgspec

from dart_streams import screens
from dart_streams.actions import Unparsable
from dart_streams.actions.sequence import parse_all
from dart_streams.config import Policy
from topics.values import BlobRef


class Point(msgspec.Struct, frozen=True):
    """A point on a screen in its pixels."""

    x: float
    y: float


def points_of(text: str, screen: BlobRef, policy: Policy) -> tuple[Point, ...]:
    """Return the points of a step's actions in order, converted from the policy's pixels to the screen's."""
    try:
        actions = parse_all(text)
    except Unparsable:
        return ()
    width, height = screens.smart_resize(screen.width, screen.height, policy.min_pixels, policy.max_pixels)
    return tuple(
        Point(getattr(action, x) * screen.width / width, getattr(action, y) * screen.height / height)
        for action in actions
        for x, y in (("x", "y"), ("to_x", "to_y"))
        if hasattr(action, x)
    )
