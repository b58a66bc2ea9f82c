"""Where an action points to on the screen it was decided on. Pure."""

import msgspec

from dart_streams import actions, screens
from dart_streams.config import Policy
from topics.values import BlobRef


class Point(msgspec.Struct, frozen=True):
    """A place on a screen, in its pixels."""

    x: float
    y: float


def points_of(text: str, screen: BlobRef, policy: Policy) -> tuple[Point, ...]:
    """Return where an action points to, from the policy's pixels to the screen's."""
    try:
        action = actions.parse(text)
    except actions.Unparsable:
        return ()
    width, height = screens.smart_resize(screen.width, screen.height, policy.min_pixels, policy.max_pixels)
    return tuple(
        Point(getattr(action, x) * screen.width / width, getattr(action, y) * screen.height / height)
        for x, y in (("x", "y"), ("to_x", "to_y"))
        if hasattr(action, x)
    )
