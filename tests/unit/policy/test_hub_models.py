"""``policy.path`` names a folder or a model of the hub, which its cache has at a commit."""

import json
from pathlib import Path

import pytest

from dart_streams.config import Config, Policy
from dart_streams.errors import ConfigError, UserError
from dart_streams.policy import hub_models, model_folder, recipe
from dart_streams.policy.hub_models import HubModel, parse_id

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
