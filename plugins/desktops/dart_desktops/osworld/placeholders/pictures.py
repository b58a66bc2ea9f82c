"""Placeholders of pictures, of GIMP's files, and of videos and sounds."""

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dart_desktops.osworld.placeholders.request import FileRequest

WIDTH, HEIGHT = 320, 240
TILE = 64
"""Side of the squares in which GIMP stores a layer."""
PROPERTY_END = struct.pack(">II", 0, 0)
UNCOMPRESSED = struct.pack(">IIB", 17, 1, 0)
"""GIMP's property for pixels without compression."""
FILM_S = 130
"""Duration of a video: tasks begin to play at the second minute."""
ENCODE_S = 120.0


def draw_picture(finished: bool) -> Any:
    """Return a picture of a disc on a gradient."""
    from PIL import Image, ImageDraw

    picture = Image.linear_gradient("L").resize((WIDTH, HEIGHT)).convert("RGB")
    ImageDraw.Draw(picture).ellipse((80, 40, 200, 160), fill="navy" if finished else "orange")
    return picture


def write_picture(path: Path, request: FileRequest) -> None:
    """Write a picture."""
    draw_picture(request.finished).save(path)


def write_pixels(path: Path, request: FileRequest) -> None:
    """Write the pixels of a picture, without a header."""
    path.write_bytes(draw_picture(request.finished).tobytes())


def write_layers(path: Path, request: FileRequest) -> None:
    """Write a GIMP file with a picture in a layer above a white one."""
    from PIL import Image

    disc = draw_picture(request.finished).convert("RGBA")
    white = Image.new("RGBA", disc.size, "white")
    layers = [pack_layer("Object", disc), pack_layer("Background", white)]
    head = b"gimp xcf file\0" + struct.pack(">III", *disc.size, 0) + UNCOMPRESSED + PROPERTY_END
    place = len(head) + 4 * (len(layers) + 2)
    pointers, bodies = b"", b""
    for pack in layers:
        pointers += struct.pack(">I", place + len(bodies))
        bodies += pack(place + len(bodies))
    path.write_bytes(head + pointers + bytes(8) + bodies)


def pack_layer(name: str, picture: Any) -> Callable[[int], bytes]:
    """Return a function that gives a layer's bytes at an offset in the file, to which its pointers refer."""
    width, height = picture.size
    boxes = [
        (left, top, min(left + TILE, width), min(top + TILE, height))
        for top in range(0, height, TILE)
        for left in range(0, width, TILE)
    ]

    def pack(start: int) -> bytes:
        label = name.encode() + b"\0"
        head = struct.pack(">IIII", width, height, 1, len(label)) + label + PROPERTY_END
        hierarchy = start + len(head) + 8
        level = hierarchy + 20
        tiles = level + 8 + 4 * (len(boxes) + 1)
        body = head + struct.pack(">II", hierarchy, 0)
        body += struct.pack(">IIIII", width, height, 4, level, 0) + struct.pack(">II", width, height)
        pixels = b""
        for box in boxes:
            body += struct.pack(">I", tiles + len(pixels))
            pixels += picture.crop(box).tobytes()
        return body + bytes(4) + pixels

    return pack


def encode_with(*options: str) -> Callable[[Path, FileRequest], None]:
    """Return a writer that has ffmpeg encode a test picture and a tone, whose pitch differs in a finished file."""

    def write_encoded(path: Path, request: FileRequest) -> None:
        pitch = 660 if request.finished else 440
        sources = [f"testsrc=size={WIDTH}x{HEIGHT}:rate=5", f"sine=frequency={pitch}"]
        inputs = [word for source in sources for word in ("-f", "lavfi", "-i", source)]
        command = ["ffmpeg", "-loglevel", "error", "-y", *inputs, *options, str(path)]
        subprocess.run(command, timeout=ENCODE_S, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    return write_encoded


WRITERS: dict[str, Callable[[Path, FileRequest], None]] = {
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"), write_picture),
    ".raw": write_pixels,
    ".xcf": write_layers,
    ".mp4": encode_with("-t", str(FILM_S), "-preset", "ultrafast", "-pix_fmt", "yuv420p"),
    **dict.fromkeys((".mp3", ".wav"), encode_with("-map", "1", "-t", "20")),
}
