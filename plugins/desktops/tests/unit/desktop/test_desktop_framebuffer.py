"""Screens as PNG: what is in the X server's memory, however it came there."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dart_desktops.desktop.guest import framebuffer
from dart_desktops.desktop.guest.framebuffer import Framebuffer, combine_checksums

PAD = 8
"""Bytes at the end of a line that are no pixels."""


class Screen:
    """A file as Xvfb keeps it, and what it shows."""

    def __init__(self, path: Path, width: int, height: int) -> None:
        self.path, self.width, self.height = path, width, height
        self.stride = width * 4 + PAD
        fields = [0] * 25
        fields[0], fields[4], fields[5], fields[12], fields[19] = 104, width, height, self.stride, 2
        self.start = 104 + 2 * framebuffer.COLOR_BYTES
        path.write_bytes(framebuffer.XWD_FIELDS.pack(*fields).ljust(self.start, b"x") + bytes(self.stride * height))
        self.wanted = Image.new("RGB", (width, height))

    def put(self, x: int, y: int, color: tuple[int, int, int]) -> None:
        """Draw a pixel, where the memory has blue first."""
        self.wanted.putpixel((x, y), color)
        with self.path.open("r+b") as file:
            file.seek(self.start + y * self.stride + 4 * x)
            file.write(bytes(reversed(color)))


@pytest.mark.parametrize(("width", "height"), [(1, 1), (7, framebuffer.ROWS), (31, 2 * framebuffer.ROWS + 1)])
def test_a_screen_is_shown_as_it_is_after_each_change(tmp_path, width, height):
    screen = Screen(tmp_path / "screen", width, height)
    frames = Framebuffer(screen.path)
    for number, y in enumerate((0, height - 1, height // 2, height - 1)):
        screen.put(number % width, y, (200, 10 * number, 7))
        png = frames.png()
        with Image.open(io.BytesIO(png)) as shown:
            assert shown.size == (width, height)
            assert shown.tobytes() == screen.wanted.tobytes()
        assert Framebuffer(screen.path).png() == png, "it depends on what was drawn before"
    frames.close()


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_are_those_of_the_whole(first, second):
    adler = framebuffer.zlib.adler32
    assert combine_checksums(adler(first), adler(second), len(second)) == adler(first + second)
