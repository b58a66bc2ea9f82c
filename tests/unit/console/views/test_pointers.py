"""Where the actions of a step point to, on the screen that they were decided on."""

import pytest

from console.views.page.episodes import Point, points_of
from dart_streams.config import Policy
from topics.values import BlobRef

SCREEN = BlobRef(sha256="s", size=1, width=160, height=210)
"""The policy sees it as 168x224."""


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("Action: click(start_box='(84,112)')", [(80, 105)]),
        ("Action: drag(start_box='(0,0)', end_box='(168,224)')", [(0, 0), (160, 210)]),
        ("Action: click(start_box='(84,112)')\n\ntype(content='a')\n\nmove(start_box='(0,0)')", [(80, 105), (0, 0)]),
        ("Action: wait()", []),
        ("none of ours", []),
        ("Action: click(start_box='(84,112)')\n\nnone of ours", []),
    ],
)
def test_each_place_of_each_action_is_shown(text, points):
    assert points_of(text, SCREEN, Policy()) == tuple(Point(x, y) for x, y in points)
