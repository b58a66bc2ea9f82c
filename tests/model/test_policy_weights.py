"""Weights go out and come back as they were, or not at all."""

import os
from pathlib import Path

import fsspec
import pytest
import torch
from safetensors import SafetensorError

from dart_streams import config, file_storage
from dart_streams.errors import UserError
from dart_streams.policy import weights
from topics.weights import WeightPart

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.weight": torch.ones(4)}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(3, 2, bias=False)
        self.b = torch.nn.LayerNorm(4, bias=False)


def version(uri: str, sha256: str) -> WeightPart:
    return WeightPart(version=3, uri=uri, sha256=sha256)


def test_what_is_saved_is_loaded(tmp_path):
    sha256 = weights.save(STATE, str(tmp_path / "v3"))
    model = Model()
    weights.load(model, weights.fetch(version(str(tmp_path / "v3"), sha256), tmp_path / "cache"))
    assert torch.equal(model.a.weight, STATE["a.weight"])


def test_weights_elsewhere_are_copied_once(tmp_path):
    sha256 = weights.save(STATE, "memory://runs/v3")
    announced = version("memory://runs/v3", sha256)
    folder = weights.fetch(announced, tmp_path)
    assert weights.digest_file(folder / weights.FILE) == sha256
    assert weights.fetch(announced, tmp_path) == folder
    assert [place.name for place in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("place", ["memory://runs/wrong", "local"])
def test_other_weights_than_announced_are_refused_and_not_kept(tmp_path, place):
    uri = str(tmp_path / "local") if place == "local" else place
    weights.save(STATE, uri)
    with pytest.raises(weights.WrongDigest, match="version 3"):
        weights.fetch(version(uri, "0" * 64), tmp_path / "cache")
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("uri", ["memory://nowhere/v3", "/nowhere/v3"])
def test_missing_weights_name_the_place(tmp_path, uri):
    with pytest.raises(UserError, match="nowhere/v3"):
        weights.fetch(version(uri, "0" * 64), tmp_path)


def test_weights_of_another_model_are_refused(tmp_path):
    weights.save({"a.weight": STATE["a.weight"], "c.weight": torch.ones(1)}, str(tmp_path))
    with pytest.raises(ValueError, match="another model"):
        weights.load(Model(), tmp_path)


def test_tensors_that_share_memory_are_saved_once(tmp_path):
    shared = torch.ones(3)
    weights.save({"embed": shared, "head": shared}, str(tmp_path))
    from safetensors.torch import load_file

    assert list(load_file(tmp_path / weights.FILE)) == ["embed"]
    assert [file.name for file in tmp_path.iterdir()] == [weights.FILE], "a half-written file had another name"


def test_files_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    """Each sync is looked at when it happens: what it is of, and what had its name by then."""
    seen: list[tuple[str, bool]] = []
    fsync = os.fsync

    def looking(descriptor: int) -> None:
        fsync(descriptor)
        synced = Path(f"/proc/self/fd/{descriptor}").readlink()
        seen.append((synced.name, (tmp_path / "v3" / weights.FILE).exists()))

    monkeypatch.setattr(os, "fsync", looking)
    weights.save(STATE, str(tmp_path / "v3"), {weights.PROBE: b"{}"})
    assert seen == [
        *((weights.PROBE, False), (f"{weights.FILE}.partial", False)),
        *(("v3", True), (tmp_path.name, True)),
    ]


def test_this_environment_speaks_the_object_store_protocol():
    settings = config.load(Path(__file__).parents[2] / "deploy/k8s/components/object-store/dart.toml")
    filesystem, folder = fsspec.core.url_to_fs(settings.trainer.weights_uri, anon=True)
    assert "s3" in file_storage.Storage(filesystem, folder, settings.trainer.weights_uri).protocols
    assert f"s3://{folder}" == settings.trainer.weights_uri


@pytest.mark.parametrize(
    "state",
    [
        STATE,
        {name: tensor.bfloat16() for name, tensor in STATE.items()},
        {"b": torch.tensor(1.5), "a.ä": torch.ones(3, 0), "c": torch.arange(5.0)},
        {"shared": STATE["b.weight"], "tied": STATE["b.weight"]},
        {"z": torch.ones(2), "a": torch.ones(3, dtype=torch.bfloat16), "m": torch.arange(3)},
    ],
    ids=["float32", "bfloat16", "scalar and empty", "tied", "several types"],
)
def test_a_digest_without_a_file_is_that_of_the_file(state, tmp_path):
    assert weights.digest_tensors(state) == weights.save(state, str(tmp_path))


def test_a_full_temporary_folder_is_named(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(OSError, match=r"where they are prepared, can't be written .*No space left.* TMPDIR"):
        weights.save(STATE, str(tmp_path / "v3"))
