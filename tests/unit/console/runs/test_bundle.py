"""A bundle keeps every byte, and one that is torn, damaged or of a newer schema is refused by name."""

import contextlib
import hashlib
import os
import re
import struct
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
import zstandard

from console.bundles.bundle_inputs import JOURNAL, captured_journal, config_of
from console.runs import bundle as bundles
from console.runs.bundle import Blob, Bundle, BundleError, BundleRecord, Manifest, Writer, verify
from dart_streams.errors import UserError
from dart_streams.store.blobs import ref_of

MANIFEST = Manifest(run="r", prefix="dart.r.", captured_ms=1, schemas={"trajectories": 1})
RECORDS = [
    BundleRecord(0, 0, 5, b"k", b"\x00\xff not json", [("h", b"\xff"), ("h", None)]),
    BundleRecord(1, 7, 6, None, None, []),
    BundleRecord(0, 3, 7, b"", b"x" * 100_000, []),
]
SHOT = ref_of(b"png", "image/png", 1, 1)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "run.dart"
    with Writer(path, MANIFEST) as bundle:
        bundle.text("config.toml", "[run]\n")
        bundle.records("trajectories", iter(RECORDS))
        bundle.blobs([Blob(SHOT.sha256, b"png")])
    return path


@contextlib.contextmanager
def memory_below(mib: int) -> Iterator[None]:
    """Fail if a block takes more memory."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mib << 20
    finally:
        tracemalloc.stop()


def test_every_byte_of_a_record_comes_back(made: Path):
    bundle = Bundle(made)
    assert list(bundle.records("trajectories")) == RECORDS
    assert bundle.text("config.toml") == "[run]\n"
    assert [blob.data for blob in bundle.blobs()] == [b"png"]
    assert bundle.manifest == MANIFEST


def test_the_sections_are_listed_and_one_that_was_not_captured_is_named(made: Path):
    found = {section.name: section for section in verify(made)}
    assert found["trajectories"].items == 3
    assert found["trajectories"].offsets == {"0": "0..3", "1": "7..7"}
    assert found["blobs"].items == 1
    with pytest.raises(BundleError, match=r"no curated: it has config.toml, trajectories, blobs"):
        list(Bundle(made).records("curated"))


@pytest.mark.parametrize("left", [0, 10, 0.3, 0.7, -1])
def test_a_torn_bundle_is_refused(made: Path, left: float):
    whole = made.read_bytes()
    keep = int(len(whole) * left) if 0 < left < 1 else int(left) if left >= 0 else len(whole) - 1
    made.write_bytes(whole[:keep])
    with pytest.raises(BundleError, match=r"its end is missing|is truncated"):
        Bundle(made)


def test_any_flipped_byte_of_a_section_is_found(made: Path):
    whole = made.read_bytes()
    end = max(section.start + section.size for section in Bundle(made).directory.sections)
    for place in range(0, end, 7):
        made.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(BundleError, match="damaged"):
            verify(made)


def test_a_flipped_byte_is_found_by_whoever_reads_the_section_to_its_end(made: Path):
    """Without a look at the digests first. A bit of the frame's header may change nothing of what is read."""
    whole = made.read_bytes()
    section = Bundle(made).sections["trajectories"]
    unharmed = []
    for place in range(section.start, section.start + section.size):
        made.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert list(Bundle(made).records("trajectories")) == RECORDS
            unharmed.append(place - section.start)
        except BundleError as error:
            assert "damaged in trajectories" in str(error)
    assert len(unharmed) < section.size / 10
    assert all(place < 6 for place in unharmed), "the magic number and the header are 6 bytes"


def test_a_capture_that_fails_leaves_nothing_behind(tmp_path: Path):
    def failing():
        yield RECORDS[0]
        raise UserError("the broker has gone")

    with pytest.raises(UserError, match="gone"), Writer(tmp_path / "run.dart", MANIFEST) as bundle:
        bundle.records("trajectories", failing())
    assert list(tmp_path.iterdir()) == []


def test_records_out_of_order_are_found(tmp_path: Path):
    path = tmp_path / "run.dart"
    with Writer(path, MANIFEST) as bundle:
        bundle.records("trajectories", [RECORDS[2], RECORDS[0]])
    with pytest.raises(BundleError, match=r"trajectories\[0\]@0 is out of order"):
        verify(path)


def hostile(path: Path, name: str, kind: bundles.Kind, content: bytes, changed: Mapping = {}, times: int = 1) -> Path:
    """Write a bundle of one section, named so often, with the sizes that its directory is to claim."""
    section = bundles.BundleSection(
        name=name,
        kind=kind,
        start=0,
        size=len(content),
        items=1,
        raw_size=1 << 24,
        sha256=hashlib.sha256(content).hexdigest(),
    )
    body = msgspec.json.encode(bundles.Directory(version=1, manifest=MANIFEST, sections=[section] * times))
    for key, value in changed.items():
        body = re.sub(rf'"{key}":("[^"]*"|-?\d+)'.encode(), f'"{key}":{value}'.encode(), body, count=1)
    payload = body + struct.pack("<I", len(body)) + bundles.MAGIC
    path.write_bytes(content + bundles.SKIPPABLE + struct.pack("<I", len(payload)) + payload)
    return path


def frame(content: bytes, window_log: int = 21) -> bytes:
    settings = zstandard.ZstdCompressionParameters.from_level(3, window_log=window_log)
    making = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return making.compress(content) + making.flush()


def test_small_items_are_not_unpacked_beyond_what_the_bundle_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The sum is bounded as each item is: the page of any run would list this journal of 48 MiB in 7 kB."""
    path, content = tmp_path / "bomb.dart", frame((struct.pack(">I", 1 << 20) + bytes(1 << 20)) * 48)
    with Writer(path, MANIFEST) as bundle:
        bundle.section(JOURNAL, "lines", [bytes(1 << 20)] * 48)
    lying = hostile(tmp_path / "lie.dart", JOURNAL, "lines", content, {"items": 48, "raw_size": 0})
    with memory_below(16):
        with pytest.raises(
            bundles.BundleTooLarge, match="Only if you trust who made it, set DART_BUNDLE_BYTES=50334720"
        ):
            captured_journal(Bundle(path))
        with pytest.raises(BundleError, match=r"an item of 1048576 bytes, where 0 are the most"):
            list(Bundle(lying).lines(JOURNAL))
    monkeypatch.setenv(bundles.ROOM, "50334720")
    assert sum(map(len, Bundle(path).lines(JOURNAL))) == 48 << 20, "it is trusted"
    with pytest.raises(bundles.BundleTooLarge, match="has 50331648 bytes, and such a file 16777216 at most"):
        captured_journal(Bundle(path))


def test_what_a_bundle_expands_to_is_bounded_by_its_size_and_items(tmp_path: Path):
    with Writer(tmp_path / "run.dart", MANIFEST) as bundle:
        bundle.section(JOURNAL, "lines", (b"" for _ in range(600_000)))
    with pytest.raises(bundles.BundleTooLarge, match="expands to 38400000"):
        Bundle(tmp_path / "run.dart")
    path = hostile(tmp_path / "run.dart", "blobs", "blobs", os.urandom(1 << 19), {"raw_size": 50 << 20})
    assert Bundle(path).sections["blobs"].raw_size == 50 << 20


def test_a_directory_of_gigabytes_is_not_read(tmp_path: Path):
    path = tmp_path / "sparse.dart"
    with path.open("wb") as file:
        file.seek(1 << 30)
        file.write(struct.pack("<I", (1 << 30) - 1) + bundles.MAGIC)
    with memory_below(1), pytest.raises(BundleError, match="its directory of 1073741823 bytes is not complete"):
        Bundle(path)


@pytest.mark.parametrize("kind", ["text", "records", "blobs", "lines"])
def test_a_few_bytes_are_not_unpacked_to_gigabytes(tmp_path: Path, kind: bundles.Kind):
    length = 300 << 20
    content = frame(struct.pack(">I", length) + b"\0" * length)
    assert len(content) < 100_000
    name = "blobs" if kind == "blobs" else "curated"
    path = hostile(tmp_path / "bomb.dart", name, kind, content)
    with memory_below(64):
        with pytest.raises(BundleError, match=f"damaged in {name}.*an item of {length} bytes"):
            verify(path)
        with pytest.raises(BundleError):
            Bundle(path).text(name)


@pytest.mark.parametrize(
    "changed",
    [
        *({"start": -1}, {"start": 10**30}, {"start": 10**9}, {"size": -5}, {"items": -1}, {"items": 10**18}),
        *({"kind": '"other"'}, {"name": "7"}),
    ],
)
def test_a_directory_that_says_anything_is_refused_as_a_damaged_bundle(tmp_path: Path, changed: dict[str, int | str]):
    content = frame(struct.pack(">I", 6) + b"[run]\n")
    path = hostile(tmp_path / "odd.dart", "config.toml", "text", content, changed)
    with pytest.raises(BundleError):
        verify(path)
    with pytest.raises(BundleError):
        Bundle(path).text("config.toml")


def test_a_section_named_twice_and_a_text_of_two_items_are_refused(tmp_path: Path):
    with pytest.raises(BundleError, match="a name twice"):
        Bundle(hostile(tmp_path / "odd.dart", "curated", "records", frame(b""), times=2))
    content = frame((struct.pack(">I", 3) + b"a=1") * 2)
    bundle = Bundle(hostile(tmp_path / "odd.dart", "config.toml", "text", content, {"items": 2}))
    with pytest.raises(BundleError, match=r"damaged in config\.toml: 2 items, where a text is one"):
        bundle.text("config.toml")


@pytest.mark.parametrize(
    "content",
    [
        frame(struct.pack(">I", 6) + b"\xff\xfe[r]\n"),
        frame(struct.pack(">I", 4_000_000) + b"a=" + b"[" * 3_999_998),
        frame(struct.pack(">I", 10) + b"a = 1\na=2\n"),
        frame(struct.pack(">I", 8) + b"a=" + b"9" * 6),
        frame(struct.pack(">I", 20_004) + b"a." * 10_000 + b"a=1\n"),
        frame(struct.pack(">I", 6_000_000) + b"".join(b"a%07d=1\n" % number for number in range(600_000))[:6_000_000]),
    ],
    ids=["no text", "nested", "twice", "an unknown key", "a long key", "many keys"],
)
def test_a_configuration_in_a_bundle_that_is_none_is_one_line(tmp_path: Path, content: bytes):
    path = hostile(tmp_path / "odd.dart", "config.toml", "text", content)
    with memory_below(32), pytest.raises(UserError):
        config_of(Bundle(path))


@pytest.mark.parametrize("window_log", [24, 27])
def test_a_section_with_too_large_a_window_is_refused(tmp_path: Path, window_log: int):
    content = frame(struct.pack(">I", 6) + b"[run]\n", window_log)
    with pytest.raises(BundleError, match=r"damaged in config\.toml .*too much memory"):
        Bundle(hostile(tmp_path / "odd.dart", "config.toml", "text", content)).text("config.toml")


@pytest.mark.parametrize("kind", ["records", "blobs"])
@pytest.mark.parametrize(
    "item",
    [
        *(b"\xdd\xff\xff\xff\xff", b"\x91" * 200_000, b"\xc1", b"", b"\xc6\xff\xff\xff\xff"),
        b"\x96\0\0\x01\xc0\xc0\xdd\0\x02\0\0" + b"\x92\xa0\xc0" * (1 << 17),
        msgspec.msgpack.encode(BundleRecord(1 << 40, 0, 1, None, None, [])),
        msgspec.msgpack.encode(BundleRecord(0, 0, 1 << 60, None, None, [])),
    ],
)
def test_an_item_that_says_it_is_huge_or_nested_is_a_damaged_one(tmp_path: Path, kind: bundles.Kind, item: bytes):
    path = hostile(tmp_path / "odd.dart", "blobs", kind, frame(struct.pack(">I", len(item)) + item))
    with pytest.raises(BundleError, match="damaged"):
        list(Bundle(path).blobs() if kind == "blobs" else Bundle(path).records("blobs"))
