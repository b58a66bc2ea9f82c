"""Picture behind a desktop's windows: OSWorld's image has one, and some tasks replace it."""

import struct
import zlib

from workers.env.backends.desktop.guest.framebuffer import SIGNATURE, png_chunk

PATH = "/home/user/.local/share/backgrounds/stripes.png"
SIZE, STRIPE = 480, 24
COMMAND = f"gsettings set org.gnome.desktop.background picture-uri file://{PATH}"


def wallpaper_png() -> bytes:
    """Return a PNG of diagonal stripes, which resembles no photograph."""
    rows = b"".join(
        b"\0" + bytes(200 if (row + column) // STRIPE % 2 else 60 for column in range(SIZE)) for row in range(SIZE)
    )
    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")
    return SIGNATURE + b"".join(png_chunk(kind, content) for kind, content in parts)
