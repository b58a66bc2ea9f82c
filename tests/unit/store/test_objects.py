"""Screenshots as objects below any fsspec URL; S3 is in tests/objects."""

from pathlib import Path

import pytest

from console.runs.resumption import changed_keys
from dart_streams.config import Config, parse
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.store.objects import BlobObjects, open_objects
from tests.unit.clockwork import SetClock

NAMES = [f"{number:02x}" * 32 for number in range(3)]


def test_objects_of_a_shared_folder_are_written_read_and_removed(tmp_path: Path):
    objects = BlobObjects(f"file://{tmp_path}/shared", 5.0)
    for number, name in enumerate(NAMES):
        objects.put(name, bytes([number]) * number)
    assert (tmp_path / "shared" / NAMES[1][:2] / NAMES[1]).read_bytes() == b"\x01"
    assert objects.get_many([*NAMES, "f" * 64]) == [b"", b"\x01", b"\x02\x02", None]
    assert [objects.size(name) for name in (*NAMES, "f" * 64)] == [0, 1, 2, -1]
    objects.remove([NAMES[0], "f" * 64])
    assert objects.get_many(NAMES) == [None, b"\x01", b"\x02\x02"]


async def test_calls_do_not_block_the_event_loop(tmp_path: Path):
    objects = BlobObjects(f"file://{tmp_path}", 5.0)
    await objects.run(objects.put, NAMES[1], b"data")
    assert await objects.run(objects.get, NAMES[1]) == b"data"


def test_an_unreachable_store_is_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch):
    objects, clock = BlobObjects("memory://screens", 0.2), SetClock()
    monkeypatch.setattr("dart_streams.store.objects.Deadline", lambda seconds: Deadline(seconds, clock))

    def away(*_arguments: object, **_options: object) -> bytes:
        clock.now_s += 0.15
        raise ConnectionError("away")

    monkeypatch.setattr(objects._storage.filesystem, "cat_file", away, raising=False)
    with pytest.raises(ServiceUnavailable, match=r"memory://screens can't be reached .* for 0\.2 s.*store\.objects"):
        objects.get(NAMES[0])
    assert clock.now_s == pytest.approx(100.3), "two tries"


def test_without_a_place_there_is_no_store_and_a_resumed_run_keeps_its_own():
    assert open_objects(Config().store) is None
    with pytest.raises(UserError, match=r"store\.objects\.uri"):
        open_objects(parse({"store": {"objects": {"uri": "nothing://x"}}}).store)
    other = parse({"store": {"objects": {"uri": "s3://other/x"}}})
    [change] = changed_keys(Config(), other)
    assert (change.place, change.reason) == ("store.objects.uri", "its screenshots are there")
