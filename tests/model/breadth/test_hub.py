"""Models are fetched from the hub by their id, and exports pushed to it, with the real client and a local hub."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftConfig
from transformers import AutoModelForImageTextToText

from console.sizing.model_files import read_headers, read_shape
from dart_streams.config import Config, Policy, parse
from dart_streams.disk_room import DiskRoom
from dart_streams.errors import ConfigError, UserError
from dart_streams.policy import exporting, hub, recipe, weights
from dart_streams.policy.hub_models import HubModel, find_snapshot
from dart_streams.policy.model_folder import refuse_missing
from dart_streams.policy.rendering import Renderer
from tests import events
from tests.local_hub import LocalHub, local_hub
from tests.waiting import wait_until
from trainer.learning import model as learning

PROGRAM = Path(sys.executable).parent / "dart-streams"
REPO = "org/tiny-ui"
LIMITS = Config().policy


@pytest.fixture(scope="module")
def sharded(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny policy with weights in several files and an index."""
    folder = tmp_path_factory.mktemp("sharded") / "model"
    shutil.copytree(policy, folder)
    (folder / "model.safetensors").unlink()
    AutoModelForImageTextToText.from_pretrained(policy).save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("model-0*.safetensors"))) > 2
    return folder


@pytest.fixture
def served(sharded: Path) -> Iterator[LocalHub]:
    """A hub with the sharded policy."""
    with local_hub() as running:
        running.add(REPO, sharded)
        yield running


@pytest.fixture
def command(served: LocalHub, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs ``dart-streams policy``; keywords are variables of its environment."""

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **served.environment(tmp_path / "home"), **variables}
        words = [str(PROGRAM), "policy", *map(str, arguments)]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=400, check=False)

    return run


def cached(home: Path, model: HubModel) -> Path | None:
    return find_snapshot(model, home / "hub")


def test_a_fetched_model_is_named_by_its_commit(command, served, sharded, tmp_path):
    commit = served.repositories[REPO].refs["main"]
    done = command("fetch", REPO)
    assert (done.returncode, done.stdout) == (0, f'[policy]\npath = "{REPO}@{commit}"\n')
    assert parse({"policy": {"path": f"{REPO}@{commit}"}}).policy.path.endswith(commit)
    folder = cached(tmp_path / "home", HubModel(REPO, commit))
    assert folder and {file.name for file in folder.iterdir()} == {file.name for file in sharded.iterdir()}
    assert f"at commit {commit} in {folder}" in done.stderr
    assert "Fetching" in done.stderr, "progress is shown"


def test_a_commit_in_the_cache_needs_no_network(command, served):
    served.repositories[REPO].commit({})
    first = json.loads(command("fetch", REPO, "--revision", first_commit(served), "--json").stdout)
    served.requests.clear()
    again = json.loads(command("fetch", first["path"], "--json").stdout)
    assert again == first
    assert not served.requests


def first_commit(served: LocalHub) -> str:
    return next(iter(served.repositories[REPO].commits))


def test_a_branch_that_moved_is_fetched_anew(command, served, sharded, tmp_path):
    before = json.loads(command("fetch", REPO, "--json").stdout)
    (changed := tmp_path / "changed").mkdir()
    shutil.copytree(sharded, changed, dirs_exist_ok=True)
    (changed / "README.md").write_text("new")
    commit = served.add(REPO, changed)
    after = json.loads(command("fetch", REPO, "--json").stdout)
    assert (after["commit"], before["commit"]) == (commit, first_commit(served))
    assert json.loads(command("fetch", before["path"], "--json").stdout) == before


def test_offline_a_branch_is_the_commit_that_was_fetched(command, served):
    commit = json.loads(command("fetch", REPO, "--json").stdout)["commit"]
    served.requests.clear()
    offline = json.loads(command("fetch", REPO, "--json", HF_HUB_OFFLINE="1").stdout)
    assert offline["commit"] == commit
    assert not served.requests


def test_an_output_folder_has_the_model_and_takes_a_second_fetch(command, tmp_path, sharded):
    target = tmp_path / "here"
    for _ in range(2):
        done = command("fetch", REPO, "--output", target)
        assert done.stdout == f'[policy]\npath = "{target}"\n'
    refuse_missing(target)
    other = command("fetch", REPO, "--output", sharded)
    assert "has other files: name a new folder" in other.stderr


def fails_gated(served: LocalHub) -> dict[str, str]:
    served.repositories[REPO].gated = True
    return {}


def fails_private(served: LocalHub) -> dict[str, str]:
    served.repositories[REPO].private = True
    return {}


def fails_without_weights(served: LocalHub) -> dict[str, str]:
    served.repositories[REPO].commit({"config.json": b"{}", "pytorch_model.bin": b"0"})
    return {}


FAILURES: dict[str, tuple[Callable[[LocalHub], dict[str, str]], int, str]] = {
    "gated": (fails_gated, 5, "is gated: accept its terms at"),
    "private": (fails_private, 2, "or it is private: correct the id, or set HF_TOKEN"),
    "no safetensors": (fails_without_weights, 2, "has no *.safetensors"),
    "unreachable": (lambda served: {"HF_ENDPOINT": "http://127.0.0.1:1"}, 3, "was not reached"),
    "offline": (lambda served: {"HF_HUB_OFFLINE": "1"}, 3, "HF_HUB_OFFLINE is set"),
}


@pytest.mark.parametrize(("arrange", "code", "said"), FAILURES.values(), ids=FAILURES)
def test_a_refused_fetch_says_why_in_one_line(command, served, arrange, code, said):
    done = command("fetch", REPO, **arrange(served))
    *_, last = done.stderr.strip().splitlines()
    assert done.returncode == code
    assert last.startswith("error: ") and said in last, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/none", "has no model org/none, or it is private"),
        (f"{REPO}@nowhere", "has no revision 'nowhere'"),
        ("tiny", "is no id: use ORGANIZATION/NAME@REVISION"),
        ("../tiny", "is no id: use ORGANIZATION/NAME@REVISION"),
    ],
)
def test_an_id_without_a_model_is_refused(command, name, said):
    done = command("fetch", name)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_reason_of_a_refusal_is_in_the_json_alone(command):
    done = command("fetch", "org/none", "--json")
    assert done.returncode == json.loads(done.stdout)["exit_code"] == 2
    assert "has no model org/none" in json.loads(done.stdout)["reason"]
    assert not done.stderr


def test_a_token_opens_a_gated_model(command, served):
    fails_gated(served)
    assert command("fetch", REPO, HF_TOKEN=served.token).returncode == 0


def test_a_cut_download_is_no_model_until_it_is_complete(command, served, tmp_path):
    served.cut_after = 50_000
    done = command("fetch", REPO)
    assert done.returncode == 3, done.stderr
    assert cached(tmp_path / "home", HubModel(REPO, first_commit(served))) is None
    served.cut_after = None
    assert command("fetch", REPO).returncode == 0
    assert cached(tmp_path / "home", HubModel(REPO, first_commit(served)))


def test_a_file_that_a_killed_fetch_lacks_is_fetched(command, served, tmp_path):
    model = HubModel(REPO, first_commit(served))
    command("fetch", model)
    folder = cached(tmp_path / "home", model)
    assert folder
    (folder / "tokenizer_config.json").unlink()
    assert cached(tmp_path / "home", model) is None
    assert command("fetch", model, HF_HUB_OFFLINE="1").returncode == 3
    assert command("fetch", model).returncode == 0
    assert cached(tmp_path / "home", model) == folder


def test_parts_that_a_killed_fetch_left_are_removed(command, tmp_path):
    blobs = tmp_path / "home/hub" / f"models--{REPO.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    old, fresh = blobs / "a.1.incomplete", blobs / "a.2.incomplete"
    for file in (old, fresh):
        file.touch()
    os.utime(old, (0, 0))
    assert command("fetch", REPO).returncode == 0
    assert (old.exists(), fresh.exists()) == (False, True)


def test_an_interrupt_ends_a_fetch_at_once(served, tmp_path):
    served.pause_s = 600.0  # far more than any wait for the end
    environment = {**os.environ, **served.environment(tmp_path / "home")}
    words = [str(PROGRAM), "policy", "fetch", REPO]
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: any("GET" in one and "safetensors" in one for one in served.requests), "a large file")
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == -signal.SIGINT
        finally:
            process.kill()


def test_a_model_larger_than_the_free_disk_is_refused_before(monkeypatch, tmp_path):
    siblings = [SimpleNamespace(rfilename="model.safetensors", size=16_000_000_000)]
    monkeypatch.setattr(hub, "room_at", lambda _: DiskRoom(5_000_000_000, None))
    info: Any = SimpleNamespace(siblings=siblings)
    with pytest.raises(UserError, match=r"needs 16\.0 GB more, and 5000 MB are free at .*HF_HOME"):
        hub.refuse_full_disk(HubModel(REPO), info, tmp_path / "not/yet/there")


def test_a_disk_that_fills_up_is_said_in_one_line(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(UserError, match="device; make room there, or set HF_HOME"),
        hub.refused_by_hub(HubModel(REPO), tmp_path),
    ):
        raise full


def test_a_worker_loads_a_commit_and_refuses_a_branch(sharded, monkeypatch, tmp_path):
    model = HubModel(REPO, "a" * 40)
    folder = tmp_path / f"models--{REPO.replace('/', '--')}" / "snapshots" / model.revision
    shutil.copytree(sharded, folder)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert recipe.model_folder(Config(policy=Policy(path=str(model)))) == folder
    with pytest.raises(ConfigError, match=rf"{REPO} names no commit.*set {REPO}@COMMIT"):
        recipe.model_folder(Config(policy=Policy(path=REPO)))


def test_a_worker_fetches_a_commit_that_is_missing(served, tmp_path):
    commit = served.repositories[REPO].refs["main"]
    code = (
        "from dart_streams.config import Config, Policy; from dart_streams.policy import recipe; "
        f"print(recipe.model_folder(Config(policy=Policy(path='{REPO}@{commit}'))))"
    )
    environment = {**os.environ, **served.environment(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=400, check=True
    )
    assert Path(done.stdout.strip()) == cached(tmp_path / "home", HubModel(REPO, commit))


def test_a_sharded_model_is_read_everywhere_as_one_in_a_single_file(policy, sharded, tmp_path):
    assert read_headers(sharded) == read_headers(policy)
    assert read_shape(sharded) == read_shape(policy)
    renderer = Renderer(sharded, LIMITS.min_pixels, LIMITS.max_pixels)
    whole, parts = (
        learning.load(folder, renderer, torch.device("cpu")).policy.state_dict() for folder in (policy, sharded)
    )
    assert whole.keys() == parts.keys() and all(torch.equal(whole[name], parts[name]) for name in whole)
    state = {name: tensor * 1.5 for name, tensor in weights.model_state(sharded).items()}
    version = events.weight_version(7, uri=str(tmp_path / "v7"), sha256=weights.save(state, str(tmp_path / "v7")))
    exporting.export(sharded, version, tmp_path / "trained")
    exported = weights.model_state(tmp_path / "trained")
    assert all(torch.equal(exported[name], value) for name, value in state.items())
    assert not list((tmp_path / "trained").glob("*index*")), "no index of the base is left beside one file"


def test_a_missing_shard_is_named(sharded, tmp_path):
    shutil.copytree(sharded, tmp_path / "part")
    lost = sorted((tmp_path / "part").glob("model-0*.safetensors"))[1]
    lost.unlink()
    renderer = Renderer(sharded, LIMITS.min_pixels, LIMITS.max_pixels)
    for read in (
        refuse_missing,
        read_shape,
        lambda folder: learning.load(folder, renderer, torch.device("cpu")),
        lambda folder: recipe.named_policy(Config(policy=Policy(path=str(folder)))),
    ):
        with pytest.raises(UserError, match=lost.name):
            read(tmp_path / "part")


def test_a_push_without_yes_only_lists(command, served, sharded):
    served.requests.clear()
    done = command("push", sharded, "me/mine")
    assert done.returncode == 0
    assert all(file.name in done.stdout for file in sharded.iterdir())
    assert f"to {served.url}/me/mine (private); --yes pushes them" in " ".join(done.stderr.split())
    assert not served.requests


def test_a_pushed_export_is_private_and_can_be_fetched(command, served, sharded, tmp_path):
    done = command("push", sharded, "me/mine", "--yes", HF_TOKEN=served.token)
    assert done.returncode == 0, done.stderr
    assert served.repositories["me/mine"].private
    assert done.stdout.splitlines()[-1].startswith(f"{served.url}/me/mine/commit/")
    assert command("fetch", "me/mine", "--output", tmp_path / "back", HF_TOKEN=served.token).returncode == 0
    for file in sharded.iterdir():
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("target", "token", "code", "said"),
    [(REPO, True, 2, "exists and is public: add --public"), ("me/mine", False, 5, "refuses the token for me/mine")],
)
def test_a_refused_push_uploads_nothing(command, served, sharded, target, token, code, said):
    done = command("push", sharded, target, "--yes", **({"HF_TOKEN": served.token} if token else {}))
    assert done.returncode == code
    assert said in done.stderr
    assert not served.objects


def test_only_an_export_is_pushed(command, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "is no export" in command("push", tmp_path / "empty", "me/mine").stderr
    assert "no folder" in command("push", tmp_path / "none", "me/mine").stderr


def test_an_adapter_that_names_a_folder_as_its_base_is_warned_of(command, tmp_path):
    for name, base in (("adapter_config.json", "/models/base"), ("adapter_model.safetensors", "")):
        (tmp_path / name).write_text(json.dumps({"base_model_name_or_path": base}))
    said = " ".join(command("push", tmp_path, "me/mine").stderr.split())
    assert "names the base model by a folder, /models/base" in said


def test_an_exported_adapter_names_its_base_by_id_and_commit(tmp_path):
    uri, settings = str(tmp_path / "v3"), json.dumps({"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]})
    beside = {weights.ADAPTER_CONFIG: settings.encode()}
    sha256 = weights.save({"layer.lora_A.weight": torch.ones(4, 8)}, uri, beside, kind="adapter")
    version = events.weight_version(3, uri=uri, sha256=sha256, file_sha256=sha256, kind="adapter")
    exporting.export_adapter(tmp_path, version, tmp_path / "adapter", base=HubModel("org/base", "c" * 40))
    config = PeftConfig.from_pretrained(str(tmp_path / "adapter"))
    assert (config.base_model_name_or_path, config.revision) == ("org/base", "c" * 40)
    assert hub.push_warnings(tmp_path / "adapter") == []
