"""Checkpoints in an object store: complete with their manifest, fetched where the folder lacks or has damaged them."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from dart_streams.config import parse
from dart_streams.errors import ServiceUnavailable
from dart_streams.policy.weight_location import checkpoint_base
from tests.faults import disk
from tests.model.object_store import BUCKET, EndpointConnectionError, ObjectStore, registered
from tests.model.test_checkpoint import FILES, SHARD, Training, torn
from trainer import checkpoint_store
from trainer.checkpoint import CheckpointNotWritten, CheckpointsDamaged
from trainer.checkpoint_manifest import MANIFEST
from trainer.checkpoint_reader import METADATA
from trainer.checkpoint_store import CheckpointStore
from trainer.state import TrainerState

URI = f"objects://{BUCKET}/checkpoints/run"


@pytest.fixture
def objects(monkeypatch) -> Iterator[type[ObjectStore]]:
    monkeypatch.setattr(checkpoint_store, "RETRY_INTERVAL_S", 0.01)
    with registered() as kind:
        yield kind


def training(folder: Path, uri: str = URI) -> Training:
    made = Training(folder)
    made.checkpoints.store = CheckpointStore(uri)
    return made


def stored(objects: type[ObjectStore]) -> set[str]:
    """Return the stored objects by checkpoint's step and file."""
    return {"/".join(Path(path).parts[-2:]).removeprefix("epoch-0001-step-") for path in objects.store}


def test_the_manifest_is_uploaded_last_and_two_are_kept(objects, tmp_path):
    ours = training(tmp_path)
    for number in (1, 2, 3):
        ours.step(number)
    puts = [act for act in objects.done if act.startswith("put")]
    assert puts == [f"put {name}" for name in FILES] * 3
    assert stored(objects) == {f"0000000{number}/{name}" for number in (2, 3) for name in FILES}


def test_a_trainer_without_its_folder_resumes_from_the_store(objects, tmp_path):
    first = training(tmp_path / "lost")
    first.step(1)
    first.step(2)
    shutil.rmtree(tmp_path / "lost")
    again = training(tmp_path / "new")
    assert again.restore() == TrainerState(version=2, train_step=2)
    assert again.layer.weight.equal(first.layer.weight)
    assert sorted(file.name for file in again.checkpoints.complete()[-1].iterdir()) == sorted(FILES)


def test_a_fetch_goes_on_with_the_files_that_are_whole(objects, tmp_path):
    whole = training(tmp_path / "lost").step(1)
    partial = tmp_path / "new" / f".partial-{whole.name}"
    shutil.copytree(whole, partial)
    torn(partial / METADATA)
    (partial / f".{METADATA}.partial").write_bytes(b"half")
    shutil.rmtree(whole.parent)
    objects.done.clear()
    again = training(tmp_path / "new")
    assert again.restore() == TrainerState(version=1, train_step=1)
    assert [act for act in objects.done if act.startswith("get")] == [f"get {MANIFEST}", f"get {METADATA}"]
    assert sorted(file.name for file in again.checkpoints.complete()[-1].iterdir()) == sorted(FILES)


def test_an_upload_that_was_killed_is_never_read(objects, tmp_path):
    ours = training(tmp_path)
    ours.step(1)
    ours.step(2)
    for path in [path for path in objects.store if path.endswith(f"step-00000002/{MANIFEST}")]:
        del objects.store[path]
    shutil.rmtree(tmp_path)
    assert training(tmp_path).restore() == TrainerState(version=1, train_step=1)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_here_is_replaced_by_the_stored_one(objects, tmp_path, name):
    torn(training(tmp_path).step(1) / name)
    with structlog.testing.capture_logs() as logs:
        assert training(tmp_path).restore() == TrainerState(version=1, train_step=1)
    assert "checkpoint damaged: resuming from its stored copy" in [log["event"] for log in logs]


def test_damage_in_the_store_is_found_and_the_one_before_taken(objects, tmp_path):
    ours = training(tmp_path)
    ours.step(1)
    ours.step(2)
    shutil.rmtree(tmp_path)
    for path in [path for path in objects.store if path.endswith(f"step-00000002/{SHARD}")]:
        objects.store[path].seek(100)
        objects.store[path].write(b"????")
    assert training(tmp_path).restore() == TrainerState(version=1, train_step=1)


def test_with_every_copy_damaged_each_is_named(objects, tmp_path):
    training(tmp_path).step(1)
    shutil.rmtree(tmp_path)
    for path in [path for path in objects.store if path.endswith(SHARD)]:
        objects.store[path].write(b"????")
    with pytest.raises(CheckpointsDamaged, match=f"step-00000001: {SHARD} "):
        training(tmp_path).restore()


def test_an_outage_is_awaited_and_logged(objects, tmp_path):
    ours = training(tmp_path)
    objects.away += [EndpointConnectionError("no endpoint")] * 3
    with structlog.testing.capture_logs() as logs:
        ours.step(1)
    assert "waiting for the checkpoint store" in [log["event"] for log in logs]
    assert stored(objects) == {f"00000001/{name}" for name in FILES}
    objects.away += [ConnectionResetError("reset")] * 2
    shutil.rmtree(tmp_path)
    assert training(tmp_path).restore() == TrainerState(version=1, train_step=1)


def test_an_outage_has_a_bound_and_a_stop_ends_it(objects, tmp_path, monkeypatch):
    ours = training(tmp_path)
    ours.step(1)
    objects.away += [EndpointConnectionError("no endpoint")] * 1000
    assert ours.checkpoints.store is not None
    ours.checkpoints.store.stop.set()
    with pytest.raises(CheckpointNotWritten, match=f"check that {URI} exists"):
        ours.step(2)
    monkeypatch.setattr(checkpoint_store, "STORE_TIMEOUT_S", 0.05)
    with pytest.raises(ServiceUnavailable, match=r"can't be listed .*trainer\.checkpoints_uri"):
        training(tmp_path).restore()
    objects.away.clear()
    assert training(tmp_path).restore() == TrainerState(version=1, train_step=1)


def test_a_missing_bucket_is_named_and_not_made(objects, tmp_path):
    with pytest.raises(CheckpointNotWritten, match="check that objects://misspelt/run exists"):
        training(tmp_path, "objects://misspelt/run").step(1)
    assert not objects.store


def test_checkpoints_of_two_runs_have_folders_of_their_own():
    settings = {"trainer": {"checkpoints_uri": "s3://b/c/"}, "bus": {"prefix": "dart.one."}}
    assert checkpoint_base(parse(settings, source="test")) == "s3://b/c/dart.one"
    assert checkpoint_base(parse({}, source="test")) == ""


@pytest.mark.skipif(bool(disk.possible()), reason="mounting a small disk needs root")
def test_a_checkpoint_folder_on_a_read_only_disk_is_named_as_that(tmp_path):
    with disk.small_disk(tmp_path / "disk", 64) as place:
        ours = Training(place)
        ours.step(1)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        with pytest.raises(
            CheckpointNotWritten, match=rf"Read-only .*{place}.*: mount its file system writable"
        ) as fault:
            ours.step(2)
        assert "are free" not in str(fault.value)
