"""What `dart-streams doctor` says of OSWorld's tasks: their evaluators' environment, and their mirror."""

import json
from pathlib import Path

import pytest

from dart_desktops.checks import check_osworld
from dart_desktops.osworld import mirror, sidecar
from dart_desktops.osworld.mirror import FileDigest, Mirror
from dart_streams.config import Config, parse

BASE = f"https://hub.example/datasets/{mirror.DATASET}/resolve/main/os"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one task of two files, an environment of evaluators, and a mirror with one of the files."""
    files = [{"url": f"{BASE}/{name}.txt", "path": "/home/user/a"} for name in ("here", "missing")]
    download = {"type": "download", "parameters": {"files": files}}
    task = {"id": "t", "config": [download], "evaluator": {"func": "infeasible"}}
    examples = tmp_path / "checkout/evaluation_examples"
    (examples / "examples/os").mkdir(parents=True)
    (examples / "examples/os/t.json").write_text(json.dumps(task))
    (examples / "test_all.json").write_text('{"os": ["t"]}')
    (tmp_path / "tasks.toml").write_text('[osworld]\nfolder = "checkout"\n')
    (tmp_path / "mirror/os").mkdir(parents=True)
    (tmp_path / "mirror/os/here.txt").write_text("here")
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").touch()
    monkeypatch.setattr(sidecar, "ENVIRONMENT", tmp_path / "env")
    return tmp_path


def configured(folder: Path, backend: str = "osworld", name: str = "mirror") -> Config:
    osworld = {"mirror_folder": str(folder / name) if name else ""}
    return parse({"env": {"backend": backend, "osworld": osworld}, "tasks": {"file": str(folder / "tasks.toml")}})


def test_files_that_are_missing_are_counted_and_those_of_our_own_making(checkout):
    found = check_osworld(configured(checkout))
    assert (found.status, "has 1 of 2 files, 0 of our own making" in found.found) == ("warn", True)
    assert "dart-streams osworld mirror" in found.advice
    (checkout / "mirror/os/missing.txt").write_text("made")
    Mirror(checkout / "mirror").record({"os/missing.txt": FileDigest("", 4, made=True)})
    found = check_osworld(configured(checkout))
    assert (found.status, "has 2 of 2 files, 1 of our own making" in found.found) == ("ok", True)


def test_a_task_whose_file_cannot_be_used_is_named(checkout):
    (checkout / "checkout/evaluation_examples/examples/os/bad.json").write_text("{")
    (checkout / "checkout/evaluation_examples/test_all.json").write_text('{"os": ["bad", "t"]}')
    found = check_osworld(configured(checkout))
    assert (found.status, "has 1 of 2 files" in found.found, "os/bad" in found.found) == ("warn", True, True)


def test_tasks_without_files_need_no_mirror(checkout):
    task = checkout / "checkout/evaluation_examples/examples/os/t.json"
    source = {"instruction": "Give up.", "config": [], "evaluator": {"func": "infeasible"}}
    task.write_text(json.dumps(source))
    found = check_osworld(configured(checkout, name=""))
    assert (found.status, found.found) == ("ok", "none of its tasks needs a file of the mirror")


def test_each_thing_that_is_not_there_is_named(checkout, monkeypatch):
    for name, why in (("", "no mirror is named"), ("none", "no mirror")):
        found = check_osworld(configured(checkout, name=name))
        assert (found.status, found.found[: len(why)]) == ("fail", why)
    monkeypatch.setattr(sidecar, "ENVIRONMENT", checkout / "nowhere")
    found = check_osworld(configured(checkout))
    assert (found.status, found.advice) == ("fail", "make osworld, in the repository")


def test_a_checkout_that_is_not_there_fails(checkout):
    (checkout / "tasks.toml").write_text('[osworld]\nfolder = "nowhere"\n')
    found = check_osworld(configured(checkout))
    assert (found.status, "no checkout of OSWorld" in found.advice) == ("fail", True)


@pytest.mark.parametrize("name", ["miniwob", "osworld"])
def test_nothing_is_asked_for_without_tasks_of_osworld(checkout, name):
    page = '[[pages]]\nenvironment = "x"\npage = "y"\nmax_steps = 3\ntrain_seeds = [0, 1]\nheldout_seeds = [1, 2]\n'
    (checkout / "tasks.toml").write_text(page)
    assert check_osworld(configured(checkout, name, name="")).status == "ok"
