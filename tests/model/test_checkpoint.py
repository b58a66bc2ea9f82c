"""Checkpoints as files: what was damaged is found and named, what is restored is what was written, and runs no code."""

import os
import pickle
from pathlib import Path

import msgspec
import pytest
import structlog
import torch

from dart_streams.errors import UserError
from trainer import checkpoint_manifest
from trainer.checkpoint import Checkpoints, CheckpointsDamaged
from trainer.checkpoint_manifest import MANIFEST, CheckpointFile, CheckpointManifest
from trainer.checkpoint_reader import METADATA, ForeignObject, TensorReader
from trainer.ranks import Ranks
from trainer.state import TrainerState

SHARD, STATE = "__0_0.distcp", "state.json"
FILES = (SHARD, METADATA, STATE, MANIFEST)


class Training:
    """A layer that is trained, and its checkpoints."""

    def __init__(self, folder: Path, *, rate: float = 0.1, width: int = 4, frozen_sha256: str = "") -> None:
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(width, 3)
        self.optimizer = torch.optim.AdamW(self.layer.parameters(), lr=rate, fused=True)
        self.checkpoints = Checkpoints(folder, Ranks(0, 1, torch.device("cpu")), frozen_sha256)

    def step(self, number: int, epoch: int = 1) -> Path:
        """Make an update and save it; return the checkpoint's folder."""
        self.layer(torch.full((2, self.layer.in_features), float(number))).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.checkpoints.save(self.layer, self.optimizer, TrainerState(version=number, train_step=number), epoch)
        return self.checkpoints.complete()[-1]

    def restore(self) -> TrainerState | None:
        return self.checkpoints.restore(self.layer, self.optimizer)


def test_restore_keeps_weights_moments_and_the_configured_rate(tmp_path):
    first, second = Training(tmp_path), Training(tmp_path, rate=0.5)
    first.step(1)
    assert second.restore() == TrainerState(version=1, train_step=1)
    assert torch.equal(second.layer.weight, first.layer.weight)
    for name in ("exp_avg", "exp_avg_sq", "step"):
        one, two = (each.optimizer.state[each.layer.weight][name] for each in (first, second))
        assert torch.equal(one, two), name
    assert [group["lr"] for group in second.optimizer.param_groups] == [0.5]


def test_every_file_of_a_checkpoint_has_its_digest(tmp_path):
    folder = Training(tmp_path).step(1)
    manifest = checkpoint_manifest.read(folder)
    assert isinstance(manifest, CheckpointManifest)
    assert {file.name for file in manifest.files} == {file.name for file in folder.iterdir()} - {MANIFEST}


def torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def removed(file: Path) -> None:
    file.unlink()


def zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [torn, emptied, removed, zeros, a_folder])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_taken(tmp_path, name, damage):
    first, second = Training(tmp_path), Training(tmp_path)
    whole = first.step(1)
    weight = first.layer.weight.detach().clone()
    damage(first.step(2) / name)
    with structlog.testing.capture_logs() as logs:
        assert second.restore() == TrainerState(version=1, train_step=1)
    assert torch.equal(second.layer.weight, weight)
    assert [f"{name} " in log["reason"] for log in logs if log["log_level"] == "error"] == [True]
    assert second.checkpoints.complete() == [whole], "the damaged one is set aside"
    assert Training(tmp_path).restore() == TrainerState(version=1, train_step=1), "as at every later start"


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path):
    training = Training(tmp_path)
    folder = training.step(1)
    undamaged = {name: (folder / name).read_bytes() for name in FILES}
    for name, data in undamaged.items():
        for place in range(0, len(data), max(1, len(data) // 40)):
            (folder / name).write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
            with pytest.raises(CheckpointsDamaged, match=rf"step-00000001: {name} |{MANIFEST}"):
                training.restore()
        (folder / name).write_bytes(data)
    assert training.restore() is not None


def test_if_all_are_damaged_each_is_named_and_none_is_moved(tmp_path):
    training = Training(tmp_path)
    one, two = training.step(1), training.step(2)
    removed(one / METADATA)
    torn(two / SHARD)
    with pytest.raises(CheckpointsDamaged) as error:
        training.restore()
    for said in (f"{two.name}: {SHARD} is torn", f"{one.name}: {METADATA} is missing", "run --init"):
        assert said in str(error.value)
    assert training.checkpoints.complete() == [one, two]


def test_a_damaged_checkpoint_is_kept_until_two_newer_ones_are_there(tmp_path):
    training = Training(tmp_path)
    training.step(1)
    torn(training.step(2) / SHARD)
    training.restore()
    left = []
    for number in (2, 3):
        training.step(number, epoch=10_000)
        left.append(sorted(place.name for place in tmp_path.iterdir()))
    aside = ".damaged-epoch-0001-step-00000002"
    assert left == [
        [aside, "epoch-0001-step-00000001", "epoch-10000-step-00000002"],
        ["epoch-10000-step-00000002", "epoch-10000-step-00000003"],
    ]


def test_what_was_trained_beside_other_frozen_weights_is_refused(tmp_path):
    Training(tmp_path, frozen_sha256="a" * 64).step(1)
    assert Training(tmp_path, frozen_sha256="a" * 64).restore() is not None
    with pytest.raises(UserError, match=r"other frozen weights .* was a{64}, and is b{64}.*policy\.path"):
        Training(tmp_path, frozen_sha256="b" * 64).restore()


def test_an_undamaged_checkpoint_of_another_model_is_not_called_damaged(tmp_path):
    Training(tmp_path).step(1)
    with pytest.raises(UserError, match="not of this policy"):
        Training(tmp_path, width=5).restore()


def test_a_state_of_another_program_version_is_not_called_damaged(tmp_path):
    training = Training(tmp_path)
    rewrite(training.step(1), STATE, b'{"version": "one"}')
    with pytest.raises(UserError, match="resume it with the version that wrote it"):
        training.restore()


class Code:
    """What runs code when it is unpickled: a name, and the call that makes it."""

    def __init__(self, called: Path) -> None:
        self.called = called

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (str(self.called),)


def rewrite(folder: Path, name: str, data: bytes) -> None:
    """Change a file of a checkpoint and the manifest with it, as someone would who means to."""
    (folder / name).write_bytes(data)
    files = [CheckpointFile.of(file) for file in folder.iterdir() if file.name != MANIFEST]
    (folder / MANIFEST).write_bytes(CheckpointManifest(files=tuple(files)).encoded())


def test_no_code_in_a_checkpoint_with_forged_digests_is_run(tmp_path):
    training, called = Training(tmp_path / "checkpoints"), tmp_path / "called"
    folder = training.step(1)
    rewrite(folder, METADATA, pickle.dumps(Code(called)))
    with pytest.raises(UserError, match=r"posix\.mkdir"):
        training.restore()
    assert not called.exists()


@pytest.mark.parametrize("name", ["model.weight", "optimizer.weight.exp_avg"])
def test_a_value_that_is_no_tensor_is_not_unpickled(tmp_path, name):
    training, called = Training(tmp_path / "checkpoints"), tmp_path / "called"
    folder = training.step(1)
    places = TensorReader(folder).places
    places.state_dict_metadata[name] = torch.distributed.checkpoint.metadata.BytesStorageMetadata()
    for index in [one for one in places.storage_data if one.fqn == name]:
        place = places.storage_data.pop(index)
        places.storage_data[type(index)(name)] = place
    torch.save(Code(called), folder / "bytes")
    data = bytearray((folder / SHARD).read_bytes())
    bad = (folder / "bytes").read_bytes()
    (folder / "bytes").unlink()
    data[place.offset : place.offset + place.length] = bad
    rewrite(folder, SHARD, bytes(data))
    rewrite(folder, METADATA, pickle.dumps(places))
    with pytest.raises(UserError, match=r"BytesStorageMetadata|not a tensor"):
        training.restore()
    assert not called.exists()


@pytest.mark.parametrize(
    "harmful", [os.system, eval, pickle.loads, getattr, torch.load, msgspec.json.decode], ids=lambda one: one.__name__
)
def test_the_file_of_places_can_name_nothing_but_places(tmp_path, harmful):
    folder = Training(tmp_path).step(1)

    class Call:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return harmful, (dict, "fromkeys")

    (folder / METADATA).write_bytes(pickle.dumps(Call()))
    with pytest.raises(ForeignObject):
        TensorReader(folder)
