"""Clicks of programs in a desktop that ask for the pointer before."""

import io
import json

from dart_desktops.desktop.guest import pyautogui


class Recorded(io.BytesIO):
    """A connection to a desktop that answers each request alike."""

    def readline(self, size: int | None = -1) -> bytes:
        return b'{"position": [1, 2]}\n'


def test_the_first_press_is_no_second_click_though_a_question_precedes_it():
    desktop = pyautogui._Desktop()
    desktop.stream = Recorded()
    for events in ([], [["move", 3, 4]], [["press", "left"]], [["release", "left"]], [["press", "left"]]):
        desktop.send(*events)
    sent = [json.loads(line) for line in desktop.stream.getvalue().splitlines()]
    assert [one["apart"] for one in sent if ["press", "left"] in one["events"]] == [True, False]
