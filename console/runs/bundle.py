"""A bundle: a run's records, configuration and task set in one file, written and read in bounded memory.

::

    bundle  = section* directory
    section = one zstd frame: items, each with its length before it (4 bytes, big-endian)
    directory = one zstd skippable frame: JSON (:class:`Directory`), its length (4 bytes, little-endian), ``MAGIC``

Any zstd reads the sections. The directory locates each section, and a truncated file has no directory. It declares how
far each expands, and a reader refuses more. A bundle may be another person's: what it declares has a bound too.
"""

import contextlib
import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import msgspec
import zstandard
from msgspec import Meta

from dart_streams.config.text import MALFORMED
from dart_streams.disk_room import refusal_of
from dart_streams.errors import UserError
from topics.values import LAST_MS, Partition

VERSION = 1
MAGIC = b"DARTBNDL"
SKIPPABLE = struct.pack("<I", 0x184D2A5B)
LEVEL = 3
CHUNK = 1 << 20
Kind = Literal["text", "records", "blobs", "lines"]
FileBytes = Annotated[int, Meta(ge=0, le=2**62)]
LONGEST_ITEM: dict[Kind, int] = {"text": 1 << 24, "records": 1 << 25, "blobs": 1 << 26, "lines": 1 << 24}
"""Largest item in bytes, several times that of a run; a bundle from elsewhere may claim any size."""
WINDOW_BYTES = 1 << 23
"""Largest decompression window, four times that of written bundles."""
MOST_WHOLE = 1 << 24
"""Largest file of a run's folder, and largest directory, in bytes: they are read as a whole."""
MOST_EXPANDED, MOST_RATIO, ITEM_BYTES = 1 << 25, 100, 64
"""Bytes to which any bundle may expand, and a larger bundle's multiple of its own size: runs have up to 25."""
ROOM = "DART_BUNDLE_BYTES"
"""Environment variable with the bytes to which a trusted bundle may expand beyond that."""

T = TypeVar("T")


class BundleError(UserError):
    """A bundle is truncated, damaged, of a newer schema, or lacks a section."""


class BundleTooLarge(BundleError):
    """A bundle that would expand to more than a bundle of its size may."""


class BundleRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record of the broker; its section names its topic."""

    partition: Partition
    offset: FileBytes
    at_ms: Annotated[int, Meta(ge=-1, le=LAST_MS)]
    key: bytes | None
    value: bytes | None
    headers: Annotated[list[tuple[str, bytes | None]], Meta(max_length=1 << 16)]

    @classmethod
    def of(cls, record: Any) -> Self:
        """Return the bundle record of a Kafka client's record."""
        headers = [*map(tuple, record.headers)]
        return cls(record.partition, record.offset, record.timestamp, record.key, record.value, headers)


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A screenshot's bytes under their sha256 (hex)."""

    sha256: str
    data: bytes


class BundleSection(msgspec.Struct, frozen=True, kw_only=True):
    """Place and size of a section in bytes; ``sha256`` is of its compressed bytes."""

    name: str
    kind: Kind
    start: FileBytes
    size: FileBytes
    items: FileBytes
    raw_size: FileBytes
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The run's id and prefix; ``schemas`` are the topics' versions at the capture."""

    run: str
    prefix: str
    captured_ms: int
    schemas: dict[str, int]


class Directory(msgspec.Struct, frozen=True, kw_only=True):
    """Directory at the end of the file."""

    version: int
    manifest: Manifest
    sections: list[BundleSection]


class Writer:
    """Context manager that writes a bundle; the file gets its name when it is complete and durable."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self.manifest = manifest
        self.sections: list[BundleSection] = []

    def __enter__(self) -> Self:
        try:
            self._file = self.part.open("wb")
        except OSError as error:
            raise self._refusal_of(error) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if kind is None:
                self._end()
        except OSError as full:
            raise self._refusal_of(full) from None
        finally:
            with contextlib.suppress(OSError):  # A full disk: closing writes the rest.
                self._file.close()
            self.part.unlink(missing_ok=True)
        if isinstance(error, OSError) and (refusal := refusal_of(error, self.part)):
            raise refusal from None

    def _refusal_of(self, error: OSError) -> UserError:
        return refusal_of(error, self.part) or BundleError(f"{self.part} can't be written: {error.strerror}")

    def section(self, name: str, kind: Kind, items: Iterable[bytes]) -> BundleSection:
        """Write one section item by item."""
        start, count, raw, digest = self._file.tell(), 0, 0, hashlib.sha256()
        compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compressobj()

        def write(data: bytes) -> None:
            digest.update(data)
            self._file.write(data)

        for item in items:
            if len(item) > LONGEST_ITEM[kind]:
                raise BundleError(f"{name} has an item of {len(item)} bytes, and a bundle takes {LONGEST_ITEM[kind]}")
            write(compressor.compress(struct.pack(">I", len(item)) + item))
            count, raw = count + 1, raw + len(item)
        write(compressor.flush())
        written = BundleSection(
            name=name,
            kind=kind,
            start=start,
            size=self._file.tell() - start,
            items=count,
            raw_size=raw,
            sha256=digest.hexdigest(),
        )
        self.sections.append(written)
        return written

    def text(self, name: str, text: str) -> None:
        """Write a text as a section of one item."""
        self.section(name, "text", [text.encode()])

    def records(self, topic: str, records: Iterable[BundleRecord]) -> BundleSection:
        """Write the records of a topic."""
        return self.section(topic, "records", map(msgspec.msgpack.encode, records))

    def blobs(self, blobs: Iterable[Blob]) -> BundleSection:
        """Write screenshots."""
        return self.section("blobs", "blobs", map(msgspec.msgpack.encode, blobs))

    def _end(self) -> None:
        body = msgspec.json.encode(Directory(version=VERSION, manifest=self.manifest, sections=self.sections))
        payload = body + struct.pack("<I", len(body)) + MAGIC
        self._file.write(SKIPPABLE + struct.pack("<I", len(payload)) + payload)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.part.replace(self.path)


class Bundle:
    """A bundle on disk; sections are read on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = read_directory(path)
        self.manifest = self.directory.manifest
        self.sections = {section.name: section for section in self.directory.sections}

    def text(self, name: str) -> str:
        """Return a text section."""
        section = self._section(name)
        if section.items != 1:
            raise BundleError(f"{self.path} is damaged in {name}: {section.items} items, where a text is one")
        try:
            return b"".join(self._items(section, bytes)).decode()
        except UnicodeDecodeError as error:
            raise BundleError(f"{self.path} is damaged in {name} ({error}): capture the run again") from None

    def records(self, topic: str) -> Iterator[BundleRecord]:
        """Yield a topic's records, in order within a partition."""
        return self._items(self._section(topic), msgspec.msgpack.Decoder(BundleRecord).decode)

    def blobs(self) -> Iterator[Blob]:
        """Yield the screenshots."""
        return self._items(self._section("blobs"), msgspec.msgpack.Decoder(Blob).decode)

    def file(self, name: str) -> bytes:
        """Return a section of lines as a whole."""
        if (size := self._section(name).raw_size) > MOST_WHOLE:
            raise BundleTooLarge(f"{self.path}: {name} has {size} bytes, and such a file {MOST_WHOLE} at most")
        return b"".join(self.lines(name))

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines of a section of lines."""
        return self._items(self._section(name), bytes)

    def has(self, name: str) -> bool:
        """Return whether there is such a section."""
        return name in self.sections

    def topics(self) -> list[str]:
        """Return the captured topics."""
        return [section.name for section in self.directory.sections if section.kind == "records"]

    def _section(self, name: str) -> BundleSection:
        try:
            return self.sections[name]
        except KeyError:
            there = ", ".join(self.sections)
            raise BundleError(f"{self.path} has no {name}: it has {there}; capture the run again with it") from None

    def _items(self, section: BundleSection, decode: Callable[[bytes], T]) -> Iterator[T]:
        """Yield a section's decoded items; raise :class:`BundleError` if they are damaged."""
        with self.path.open("rb") as file:
            file.seek(min(section.start, self.path.stat().st_size))  # The largest numbers are refused with OSError.
            try:
                unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES)
                reader = unpacker.stream_reader(file, read_size=CHUNK, read_across_frames=False)
                left = section.raw_size
                for _ in range(section.items):
                    length = struct.unpack(">I", read_exactly(reader, 4))[0]
                    if length > (most := min(left, LONGEST_ITEM[section.kind])):
                        raise EOFError(f"an item of {length} bytes, where {most} are the most")
                    left -= length
                    yield decode(read_exactly(reader, length))
                reader.read(1)  # at its end zstd compares the checksum
            except (zstandard.ZstdError, EOFError, MemoryError, *MALFORMED) as error:
                reason = f"{self.path} is damaged in {section.name} ({error})"
                raise BundleError(f"{reason}: capture the run again, or copy it again") from None


def read_exactly(stream: Any, length: int) -> bytes:
    """Read ``length`` bytes; raise EOFError if there are fewer."""
    data: bytes = stream.read(length)
    while len(data) < length:
        if not (part := stream.read(length - len(data))):
            raise EOFError("the section ends within an item")
        data += part
    return data


class FormatVersion(msgspec.Struct):
    """The part of a directory that all versions have."""

    version: int


def read_directory(path: Path) -> Directory:
    """Return the directory of a bundle; raise :class:`BundleError` if it is missing, damaged, or of a newer version."""
    tail = len(MAGIC) + 4
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - tail))
            end = file.read(tail)
            if len(end) < tail or end[4:] != MAGIC:
                raise BundleError(f"{path} is no bundle, or its end is missing: copy it, or capture the run, again")
            length = struct.unpack("<I", end[:4])[0]
            if length > min(size - tail, MOST_WHOLE):
                raise BundleError(f"{path} is truncated: its directory of {length} bytes is not complete")
            file.seek(size - tail - length)
            body = file.read(length)
        if (version := msgspec.json.decode(body, type=FormatVersion).version) > VERSION:
            raise BundleError(f"{path} has version {version}, this program reads up to {VERSION}: upgrade dart_streams")
        directory = msgspec.json.decode(body, type=Directory)
        if len({section.name for section in directory.sections}) < len(directory.sections):
            raise BundleError(f"{path} has a damaged directory (a name twice): copy it or capture the run again")
        raise_if_too_large(path, size, directory.sections)
        return directory
    except FileNotFoundError:
        raise BundleError(f"no bundle {path}: make one with `dart-streams capture RUN -o {path.name}`") from None
    except OSError as error:
        raise BundleError(f"{path} can't be read: {error.strerror}") from None
    except MALFORMED as error:
        raise BundleError(f"{path} has a damaged directory ({error}): copy it or capture the run again") from None


def raise_if_too_large(path: Path, size: int, sections: Iterable[BundleSection]) -> None:
    """Raise :class:`BundleTooLarge` if a bundle of ``size`` bytes declares more than it may expand to."""
    declared = sum(section.raw_size + ITEM_BYTES * section.items for section in sections)
    if declared <= max(MOST_EXPANDED, MOST_RATIO * size):
        return
    allowed = os.environ.get(ROOM, "")
    if not allowed.isdecimal() or declared > int(allowed):
        raise BundleTooLarge(
            f"{path} has {size} bytes and expands to {declared}, more than {MOST_RATIO} times as many: it may be made "
            f"to fill memory and disk. Only if you trust who made it, set {ROOM}={declared} in the environment"
        )


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A verified section; ``offsets`` has the range of each partition."""

    name: str
    kind: str
    items: int
    mb: float
    packed_mb: float
    offsets: dict[str, str]


def verify(path: Path) -> list[Checked]:
    """Read all of a bundle and return its sections; raise BundleError for a wrong digest, number, order or name."""
    bundle = Bundle(path)
    return [check_section(bundle, section) for section in bundle.directory.sections]


def check_section(bundle: Bundle, section: BundleSection) -> Checked:
    """Read a section; raise :class:`BundleError` if it is damaged."""
    if digest_of(bundle.path, section) != section.sha256:
        raise BundleError(f"{bundle.path} is damaged in {section.name}: its digest differs from the directory's")
    ranges: dict[int, tuple[int, int]] = {}
    if section.kind == "records":
        for record in bundle.records(section.name):
            first, last = ranges.get(record.partition, (record.offset, record.offset - 1))
            if record.offset <= last:
                raise BundleError(f"{bundle.path}: {section.name}[{record.partition}]@{record.offset} is out of order")
            ranges[record.partition] = (first, record.offset)
    elif section.kind == "blobs":
        for blob in bundle.blobs():
            if hashlib.sha256(blob.data).hexdigest() != blob.sha256:
                raise BundleError(f"{bundle.path}: blob {blob.sha256[:12]}… has another digest")
    else:
        for _ in bundle.lines(section.name):
            pass
    return Checked(
        name=section.name,
        kind=section.kind,
        items=section.items,
        mb=round(section.raw_size / 1e6, 3),
        packed_mb=round(section.size / 1e6, 3),
        offsets={str(partition): f"{first}..{last}" for partition, (first, last) in sorted(ranges.items())},
    )


def digest_of(path: Path, section: BundleSection) -> str:
    """Return the sha256 of a section's compressed bytes."""
    digest, left = hashlib.sha256(), section.size
    with path.open("rb") as file:
        file.seek(min(section.start, path.stat().st_size))
        while left and (data := file.read(min(CHUNK, left))):
            digest.update(data)
            left -= len(data)
    return digest.hexdigest()
