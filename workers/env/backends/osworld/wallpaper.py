"""Picture behind a desktop's windows: OSWorld's image has one, and some tasks replace it."""

import struct
import zlib

PATH = "/home/user/.local/share/backgrounds/stripes.png"
SIZE, STRIPE = 480, 24
COMMAND = f"gsettings set org.gnome.desktop.background picture-uri file://{PATH}"


def wallpaper_png() -> bytes:
    """Return a PNG of diagonal stripes, which resembles no photograph."""
    rows = b"".join(
        b"\0" + bytes(200 if (row + column) // STRIPE % 2 else 60 for column in range(SIZE)) for row in range(SIZE)
    )
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", SIZE, SIZE, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
