"""The X server's mapped framebuffer as a PNG, of which only changed bands are compressed again."""

import mmap
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from PIL import Image

XWD_FIELDS = struct.Struct(">25I")
"""Header of an X window dump (XWDFile.h): its size, ..., width, height, ..., bytes a line, ..., colors."""
COLOR_BYTES = 12
ROWS = 24
"""Rows of a band; bands are compressed separately, so that a small change costs little."""
LEVEL = 4
"""Level of zlib. Without a filter it takes a third of the time of Pillow's encoder, for files as small."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
STREAM = b"\x78\x01"
"""Header of a zlib stream (RFC 1950)."""
LAST_BLOCK = b"\x03\x00"
"""Empty block that ends a deflate stream (RFC 1951)."""
ADLER = 65521


class Band(NamedTuple):
    """Rows of the screen in memory and compressed, with checksum and length of the uncompressed data."""

    pixels: bytes
    deflated: bytes
    adler: int
    length: int


class Framebuffer:
    """The screen in a mapped file: an X window dump with 32 bits a pixel."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        header = XWD_FIELDS.unpack_from(self.memory)
        self.size = header[4], header[5]
        self.stride = header[12]
        self.start = header[0] + header[19] * COLOR_BYTES
        self.bands: dict[int, Band] = {}

    def png(self) -> bytes:
        """Return the screen with the pointer as a PNG, which depends only on the pixels."""
        width, height = self.size
        adler, body = 1, []
        for top in range(0, height, ROWS):
            begin = self.start + top * self.stride
            pixels = self.memory[begin : begin + min(ROWS, height - top) * self.stride]
            band = self.bands.get(top)
            if band is None or band.pixels != pixels:
                band = self.bands[top] = compress_band(pixels, width, self.stride)
            adler = combine_checksums(adler, band.adler, band.length)
            body.append(band.deflated)
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        stream = b"".join([STREAM, *body, LAST_BLOCK, adler.to_bytes(4, "big")])
        return SIGNATURE + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", stream) + png_chunk(b"IEND", b"")

    def close(self) -> None:
        """Unmap the file, and drop the bands."""
        self.memory.close()
        self.bands.clear()


def compress_band(pixels: bytes, width: int, stride: int) -> Band:
    """Return a band of ``pixels``, rows of ``stride`` bytes with 4 bytes (BGRX) for each of ``width`` pixels."""
    rows = len(pixels) // stride
    colors = Image.frombuffer("RGB", (width, rows), pixels, "raw", "BGRX", stride, 1).tobytes()
    # Each row begins with its filter: 0, none.
    filtered = Image.new("L", (3 * width + 1, rows))
    filtered.paste(Image.frombuffer("L", (3 * width, rows), colors, "raw", "L", 0, 1), (1, 0))
    plain = filtered.tobytes()
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    # A full flush ends at a byte, and makes the next band independent.
    deflated = deflate.compress(plain) + deflate.flush(zlib.Z_FULL_FLUSH)
    return Band(pixels, deflated, zlib.adler32(plain), len(plain))


def combine_checksums(first: int, second: int, length: int) -> int:
    """Return the Adler-32 checksum of a concatenation, whose second part has ``length`` bytes (adler32_combine)."""
    low = ((first & 0xFFFF) + (second & 0xFFFF) - 1) % ADLER
    high = ((first >> 16) + (second >> 16) + length * ((first & 0xFFFF) - 1)) % ADLER
    return high << 16 | low


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """Return a PNG chunk: length, kind, content, checksum."""
    return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
