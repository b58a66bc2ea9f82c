"""What an oracle's script yields becomes a typed action."""

import pytest

from dart_streams.actions import Click, Drag, Type
from workers.env.backends.miniwob.oracle import as_action, next_action
from workers.env.environment import EnvironmentFault


@pytest.mark.parametrize(
    ("found", "action"),
    [
        ({"x": 3, "y": 4}, Click(3, 4)),
        ({"x": 3, "y": 4, "to_x": 5, "to_y": 6}, Drag(3, 4, 5, 6)),
        ({"text": "Kenda"}, Type("Kenda")),
    ],
)
def test_a_point_is_clicked_two_are_a_drag_and_a_text_is_typed(found, action):
    assert as_action(found) == action


def test_a_page_without_an_oracle_is_named():
    with pytest.raises(EnvironmentFault, match="tic-tac-toe"):
        next_action("tic-tac-toe")
