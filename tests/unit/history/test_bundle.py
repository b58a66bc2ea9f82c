"""A bundle keeps every byte, and one that is torn, damaged or of a newer schema is refused by name."""

import struct
from pathlib import Path

import msgspec
import pytest

from dart_streams.errors import UserError
from dart_streams.history import bundle as bundles
from dart_streams.history.bundle import Blob, Bundle, BundleError, BundleRecord, Manifest, Writer, verify
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


def test_every_byte_of_a_record_comes_back(made: Path):
    bundle = Bundle(made)
    assert list(bundle.records("trajectories")) == RECORDS
    assert bundle.text("config.toml") == "[run]\n"
    assert [blob.data for blob in bundle.blobs()] == [b"png"]
    assert bundle.manifest == MANIFEST


def test_verify_tells_what_is_there(made: Path):
    found = {section.name: section for section in verify(made)}
    assert found["trajectories"].items == 3
    assert found["trajectories"].offsets == {"0": "0..3", "1": "7..7"}
    assert found["blobs"].items == 1


@pytest.mark.parametrize("left", [0, 10, 0.3, 0.7, -1])
def test_a_torn_bundle_is_refused(made: Path, left: float):
    whole = made.read_bytes()
    keep = int(len(whole) * left) if 0 < left < 1 else int(left) if left >= 0 else len(whole) - 1
    made.write_bytes(whole[:keep])
    with pytest.raises(BundleError, match="torn"):
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


def test_a_bundle_of_a_newer_version_says_to_upgrade(made: Path):
    directory = msgspec.structs.replace(Bundle(made).directory, version=bundles.VERSION + 1)
    body = msgspec.json.encode(directory)
    made.write_bytes(made.read_bytes() + body + struct.pack("<I", len(body)) + bundles.MAGIC)
    with pytest.raises(BundleError, match=f"version {bundles.VERSION + 1}.*upgrade"):
        Bundle(made)


def test_a_section_that_was_not_captured_is_named_with_those_that_were(made: Path):
    with pytest.raises(BundleError, match=r"no curated: it has config.toml, trajectories, blobs"):
        list(Bundle(made).records("curated"))


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


def test_what_is_no_bundle_and_what_is_not_there(tmp_path: Path):
    with pytest.raises(BundleError, match="no bundle"):
        Bundle(tmp_path / "absent.dart")
    (tmp_path / "text").write_text("not a bundle at all")
    with pytest.raises(BundleError, match="no bundle, or a torn one"):
        Bundle(tmp_path / "text")
