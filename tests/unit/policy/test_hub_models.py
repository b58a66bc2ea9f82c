"""``policy.path`` names a folder or a model of the hub, which its cache has at a commit."""

import json
from pathlib import Path

import pytest

from dart_streams.config import Config, Policy
from dart_streams.errors import ConfigError, UserError
from dart_streams.policy import hub_models, model_folder, recipe
from dart_streams.policy.hub_models import HubModel, parse_id
from tests.unit.console.sizing import model_directories

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "ByteDance-Seed/UI-TARS-1.5-7B"


def configured(path: object) -> Config:
    return Config(policy=Policy(path=str(path)))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "hub"


def write_snapshot(cache: Path, *, shards: int = 1) -> Path:
    """Write a model with an index into the cache, and the commit of its branch."""
    folder = cache / "models--ByteDance-Seed--UI-TARS-1.5-7B"
    (snapshot := folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(COMMIT)
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (snapshot / "config.json").write_text("{}")
    (snapshot / model_folder.INDEX).write_text(json.dumps({"weight_map": dict(zip("ab", names, strict=True))}))
    for name in names[:shards]:
        (snapshot / name).touch()
    return snapshot


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (REPO, HubModel(REPO)),
        (f"{REPO}@{COMMIT}", HubModel(REPO, COMMIT)),
        (f"{REPO}@refs/pr/3", HubModel(REPO, "refs/pr/3")),
        *(("UI-TARS-1.5-7B", None), ("/models/UI-TARS-1.5-7B", None), ("./models/UI-TARS", None), ("../UI-TARS", None)),
        *(("a/b/c", None), (f"{REPO}@", None), (f"{REPO}@../../x", None), ("a/b.git", None), ("a b/c", None)),
        ("https://hub.example/a/b", None),
    ],
)
def test_an_id_has_an_organization_a_name_and_perhaps_a_revision(text, model):
    assert parse_id(text) == model
    if model:
        assert str(model) == text


def test_a_folder_of_the_same_name_is_no_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub_models.hub_model("models/tiny") == HubModel("models/tiny")
    (tmp_path / "models/tiny").mkdir(parents=True)
    assert hub_models.hub_model("models/tiny") is None
    (tmp_path / "models/tiny/config.json").touch()
    assert recipe.named_policy(configured("models/tiny")) == tmp_path / "models/tiny"


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
        ({"HF_HOME": "~/x"}, str(Path.home() / "x/hub")),
    ],
)
def test_the_cache_is_where_the_variables_of_the_hub_put_it(variables, folder):
    assert str(hub_models.cache_folder(variables)) == folder


def test_a_branch_is_the_commit_that_was_fetched_last(cache):
    assert hub_models.find_snapshot(HubModel(REPO)) is None
    snapshot = write_snapshot(cache, shards=2)
    assert hub_models.find_snapshot(HubModel(REPO)) == snapshot
    assert recipe.named_policy(configured(f"{REPO}@{COMMIT}")) == snapshot
    assert hub_models.find_snapshot(HubModel(REPO, "other")) is None
    hub_models.record_commit(HubModel(REPO, "refs/pr/1"), COMMIT)
    assert hub_models.find_snapshot(HubModel(REPO, "refs/pr/1")) == snapshot


def test_an_incomplete_snapshot_is_not_used(cache):
    write_snapshot(cache)
    with pytest.raises(ConfigError, match=f"{REPO} is not in {cache}: fetch it with .* policy fetch {REPO}"):
        recipe.named_policy(configured(REPO))


def test_a_snapshot_without_a_listed_file_is_not_used(cache):
    snapshot = write_snapshot(cache, shards=2)
    tree = snapshot.parents[1] / "trees" / f"{COMMIT}.json"
    tree.parent.mkdir()
    tree.write_text(json.dumps({"files": {"config.json": {}, "pytorch_model.bin": {}}}))
    assert hub_models.find_snapshot(HubModel(REPO)) == snapshot
    tree.write_text(json.dumps({"files": {"config.json": {}, "tokenizer.json": {}}}))
    assert hub_models.find_snapshot(HubModel(REPO)) is None


def test_a_text_that_is_neither_folder_nor_id_is_refused_with_both_forms(cache):
    with pytest.raises(ConfigError, match=r"no config\.json.*a folder .*UI-TARS.* or a model of the hub \(ORGANIZ"):
        recipe.named_policy(configured("/no/such/model"))


def test_an_index_that_is_none_is_named(tmp_path):
    (tmp_path / model_folder.INDEX).write_text("[]")
    with pytest.raises(UserError, match=r"index\.json is no index of safetensors files"):
        model_folder.shards_of(tmp_path)
    (tmp_path / model_folder.SINGLE).touch()
    assert model_folder.shards_of(tmp_path) is None


TENSORS = {"a": [2, 3], "b": [4]}


@pytest.mark.parametrize("change", [-1, -20, -10_000, 7])
def test_a_file_of_weights_of_another_length_is_named(tmp_path, change):
    folder = model_directories.write(tmp_path / "model", {}, {"x": [500]}, TENSORS)
    assert model_folder.read_shapes(folder) == {"x": [500], **TENSORS}
    file = folder / "model-1.safetensors"
    size = max(9, file.stat().st_size + change)
    with file.open("r+b") as stream:
        stream.truncate(size)
    with pytest.raises(UserError, match=rf"model-1\.safetensors.* {size} bytes.*copy or fetch the model again"):
        model_folder.refuse_partial(folder)


def test_a_tensor_that_the_file_of_its_index_lacks_is_named(tmp_path):
    folder = model_directories.write(tmp_path / "model", {}, {"x": [5]}, TENSORS)
    named = {"x": "model-0.safetensors", "y": "model-0.safetensors", "a": "model-1.safetensors"}
    (folder / model_folder.INDEX).write_text(json.dumps({"weight_map": named}))
    with pytest.raises(UserError, match=r"lacks y: model-0\.safetensors"):
        model_folder.refuse_partial(folder)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        *(({"quantization_config": {"quant_method": name}}, name) for name in ("awq", "gptq", "fp8", "mxfp4")),
        ({"quantization_config": {"load_in_4bit": True}}, "quantization_config"),
        ({"text_config": {"quantization_config": {"quant_method": "bitsandbytes"}}}, "bitsandbytes"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
    ],
)
def test_a_quantized_model_is_refused_with_its_method(tmp_path, config, why):
    folder = model_directories.write(tmp_path / "model", config, TENSORS)
    with pytest.raises(UserError, match=rf"quantized weights .*{why}.*: name the model that they were made of"):
        model_folder.read_configuration(folder)


@pytest.mark.parametrize("name", model_folder.QUANTIZATION_FILES)
def test_a_model_that_a_second_file_says_is_quantized_is_refused(tmp_path, name):
    folder = model_directories.write(tmp_path / "model", {"quantization_config": None}, TENSORS)
    assert model_folder.read_configuration(folder) == {"quantization_config": None}
    (folder / name).write_text("{}")
    with pytest.raises(UserError, match=name):
        model_folder.read_configuration(folder)


@pytest.mark.parametrize("kind", ["F8_E4M3", "I8", "U8"])
def test_weights_of_a_quantized_type_are_refused(tmp_path, kind):
    file = model_directories.write(tmp_path / "model", {}, TENSORS) / "model-0.safetensors"
    header = json.dumps({"a": {"dtype": kind, "shape": [4], "data_offsets": [0, 4]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(UserError, match=f"a of model-0.safetensors is {kind}"):
        model_folder.refuse_partial(file.parent)
