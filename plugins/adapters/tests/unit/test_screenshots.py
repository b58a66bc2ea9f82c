"""Screenshots that servers send as base64, data URLs, or rows of pixels in JSON."""

import base64
import io
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dart_adapters import screenshots
from dart_adapters.screenshots import decode_answer, decode_file
from dart_streams.actions import Wait
from plugins.adapters.tests.unit.test_answers_of_any_shape import TASK, backend_at, serving
from workers.env.environment import EnvironmentFault

PHONE = (1080, 2400)


def size_and_colors(image: bytes) -> tuple[tuple[int, int], list[tuple[int, ...]]]:
    with Image.open(io.BytesIO(image)) as opened:
        return opened.size, list(opened.get_flattened_data())  # type: ignore[arg-type]


@given(
    st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.lists(st.tuples(*[st.integers(0, 255)] * 3), min_size=width, max_size=width), min_size=1, max_size=5
        )
    ),
    st.sampled_from([None, 1]),
    st.text(max_size=20),
)
def test_pixels_are_those_of_the_rows_and_the_rest_is_as_it_was(rows, indent, goal):
    around = {"goal": goal, "a": {"pixels": rows}, "reward": [[[1]]]}
    answer, image = decode_answer(json.dumps(around, indent=indent).encode(), "pixels")
    assert answer == {**around, "a": {"pixels": None}}
    assert size_and_colors(image) == ((len(rows[0]), len(rows)), [pixel for row in rows for pixel in row])


def test_the_fourth_channel_is_left_out():
    _, image = decode_answer(b'{"pixels": [[[0, 0, 0, 255], [255, 0, 0, 0]]]}', "pixels")
    assert size_and_colors(image) == ((2, 1), [(0, 0, 0), (255, 0, 0)])
    with pytest.raises(ValueError, match="delimiter"):
        decode_answer(b'{"pixels": [[[1, 2, 3], [', "pixels")


def test_a_text_that_names_the_field_is_no_field():
    said = {"goal": 'write "pixels": [[[1]]] and "', "pixels": "abcd"}
    assert decode_answer(json.dumps(said).encode(), "pixels") == (said, None)


@pytest.mark.parametrize("value", [None, 7, "not base64!", [], [[]], {"a": 1}, "\u00fc"])
def test_what_is_no_file_is_a_fault(value: Any):
    assert decode_file("data:image/png;base64," + base64.b64encode(b"an image").decode()) == b"an image"
    answer, image = decode_answer(json.dumps({"pixels": value}).encode(), "pixels")
    assert image is None
    with pytest.raises(EnvironmentFault, match="screenshot"):
        decode_file(answer["pixels"])


@pytest.mark.parametrize(
    "rows",
    [
        *(
            [[[0] * 3], []],
            [[[0] * 3], [[0] * 3] * 2],
            [[[1, 2, 300]]],
            [[["x", 2, 3]]],
            [[[0.5, 1, 1]]],
            [[[-1, 0, 0]]],
        ),
        *([[[]]], [[[1]]], [[[1] * 5]], [[[[1, 2, 3]]]], [[[None] * 3]]),
    ],
)
def test_what_are_no_rows_of_pixels_is_a_fault(rows: Any):
    with pytest.raises(EnvironmentFault, match="screenshot"):
        decode_answer(json.dumps({"pixels": rows}).encode(), "pixels")


@pytest.mark.parametrize("module", ["androidworld", "openenv"])
async def test_a_phones_screen_is_decoded_beside_the_event_loop(module: str, monkeypatch: pytest.MonkeyPatch):
    from dart_adapters import androidworld, openenv

    row = "[" + ",".join(["[255,128,0]"] * PHONE[0]) + "]"
    rows = "[" + ",".join([row] * PHONE[1]) + "]"
    observed = f'{{"type": "observation", "data": {{"observation": {{"screenshot": {rows}, "goal": "Tap"}}}}}}'
    answers = {"/screenshot": f'{{"pixels": {rows}}}', "reset": observed, "step": observed}
    threads, encode = [], screenshots.encode_rows

    def noted(text: bytes) -> bytes:
        threads.append(threading.current_thread())
        return encode(text)

    monkeypatch.setattr(screenshots, "encode_rows", noted)
    backend = {"androidworld": androidworld, "openenv": openenv}[module]
    async with serving(answers) as url:
        environment = await backend_at(backend, **{"urls" if module == "androidworld" else "url": url}).open(TASK)
        shown = [await environment.reset(TASK), await environment.step(Wait(), "one")]
        await environment.close()
    assert [(screen.width, screen.height) for screen in shown] == [PHONE] * 2
    assert len(threads) == 2
    assert threading.main_thread() not in threads
