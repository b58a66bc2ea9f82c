import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from dart_streams.config import tasks
from dart_streams.errors import ConfigError

PAGE = """
[[pages]]
environment = "miniwob"
page = "{page}"
max_steps = 4
train_seeds = [{train}]
heldout_seeds = [{heldout}]
"""


def write(folder: Path, *pages: tuple[str, str, str]) -> Path:
    file = folder / "tasks.toml"
    file.write_text("".join(PAGE.format(page=page, train=train, heldout=heldout) for page, train, heldout in pages))
    return file


def test_a_page_becomes_one_task_a_seed_in_half_open_ranges(tmp_path: Path):
    loaded = tasks.load(write(tmp_path, ("click-test-2", "0, 3", "3, 5")))
    assert [task.task_id for task in loaded.train] == [f"miniwob/click-test-2#{seed}" for seed in (0, 1, 2)]
    assert [task.seed for task in loaded.heldout] == [3, 4], "adjacent ranges do not overlap"
    assert loaded.get("miniwob/click-test-2#4").split == "heldout"


@pytest.mark.parametrize("heldout", ["2, 4", "0, 3", "0, 1"])
def test_training_and_held_out_seeds_never_overlap(tmp_path: Path, heldout: str):
    with pytest.raises(ConfigError, match="overlap"):
        tasks.load(write(tmp_path, ("click-test-2", "0, 3", heldout)))


def test_a_page_listed_twice_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"task set: \w+/p#2 is there twice: .* listed twice"):
        tasks.load(write(tmp_path, ("p", "0, 3", "10, 12"), ("p", "2, 4", "20, 22")))


def test_an_unknown_task_and_an_unknown_key_of_a_page_are_named(tmp_path: Path):
    loaded = tasks.load(write(tmp_path, ("p", "0, 3", "10, 12")))
    with pytest.raises(ConfigError, match="unknown task 'miniwob/p#3'"):
        loaded.get("miniwob/p#3")
    assert "miniwob/p#3" not in loaded
    file = write(tmp_path, ("p", "0, 3", "10, 12"), ("q", "5, 6", "10, 12"))
    file.write_text(file.read_text().replace("train_seeds = [5", "train_seed = [5"))
    with pytest.raises(ConfigError, match=r"unknown key 'pages\[1\]\.train_seed': did you mean 'train_seeds'\?"):
        tasks.load(file)


def checkout(folder: Path) -> Path:
    """A folder like a checkout of OSWorld, with tasks of two apps."""
    (folder / "evaluation_examples" / "examples").mkdir(parents=True)
    ids = {"os": [f"o{n}" for n in range(10)], "vlc": [f"v{n}" for n in range(5)]}
    (folder / "evaluation_examples" / "test_all.json").write_text(json.dumps(ids))
    (folder / "evaluation_examples" / "few.json").write_bytes(b"\xef\xbb\xbf" + json.dumps({"os": ["o1"]}).encode())
    twice = {"os": ["o1", "o2", "o1"], "vlc": ["v2", "v2", "v2"]}
    (folder / "evaluation_examples" / "twice.json").write_text(json.dumps(twice))
    (folder / "evaluation_examples" / "utf-16.json").write_bytes(json.dumps(ids).encode("utf-16"))
    return folder


def osworld(folder: Path, *lines: str) -> tasks.TaskSet:
    file = folder / "tasks.toml"
    file.write_text("\n".join(["[osworld]", 'folder = "checkout"', *lines]))
    return tasks.load(file)


def test_tasks_of_osworld_are_one_instance_each_and_split_by_seed(tmp_path: Path):
    checkout(tmp_path / "checkout")
    one, same, other = (osworld(tmp_path, f"seed = {seed}", "heldout_share = 0.4") for seed in (1, 1, 2))
    assert (len(one.train), len(one.heldout)) == (9, 6)
    assert [task.task_id for task in one.heldout] == [task.task_id for task in same.heldout]
    assert [task.task_id for task in one.heldout] != [task.task_id for task in other.heldout]
    assert {task.page.partition("/")[0] for task in one.heldout} == {"os", "vlc"}, "a share of each app"
    assert one.get("osworld/os/o3#0").max_steps == 30
    assert len({task.task_id for task in one.train + one.heldout}) == 15


def test_tasks_of_osworld_can_be_chosen_by_list_app_result_and_id(tmp_path: Path):
    checkout(tmp_path / "checkout")
    assert [task.page for task in osworld(tmp_path, 'list = "few.json"', "heldout_share = 0").train] == ["os/o1"]
    assert len(osworld(tmp_path, 'apps = ["vlc"]', "heldout_share = 0").train) == 5
    chosen = osworld(tmp_path, 'heldout = ["o2", "v4"]')
    assert [task.page for task in chosen.heldout] == ["os/o2", "vlc/v4"]
    results = [("os/o1", "refused"), ("os/o1", "runnable"), ("os/o2", "runnable"), ("os/o2", "refused")]
    (tmp_path / "results").write_text(
        "\n".join(json.dumps({"page": page, "verdict": verdict, "reason": ""}) for page, verdict in results)
    )
    found = osworld(tmp_path, 'checked = "results"', "heldout_share = 0")
    assert [task.page for task in found.train] == ["os/o1"], "the last line of a task counts"


@pytest.mark.parametrize(
    "line, reason",
    [
        ('apps = ["word"]', "no app 'word'.*there are os, vlc"),
        ('list = "none.json"', "none.json can't be read"),
        ('list = "twice.json"', "twice.json has os/o1, vlc/v2 twice"),
        ('list = "utf-16.json"', "utf-16.json is in UTF-16"),
        ('heldout = ["x"]', "no task 'x'"),
        ('checked = "none"', "osworld.checked"),
        ('tasks = ["os/o1", "os/o1"]', "the key tasks has os/o1 twice"),
        ('tasks = ["o1"]', "'o1' is not of the form APP/ID"),
        ('tasks = ["os/o1"]\napps = ["vlc"]', "no app 'vlc'.*there are os"),
        ('apps = ["os"]\nmodel = "x"', "unknown key 'osworld.model'"),
    ],
)
def test_what_is_wrong_with_a_choice_of_osworlds_tasks_is_named(tmp_path: Path, line: str, reason: str):
    checkout(tmp_path / "checkout")
    with pytest.raises(ConfigError, match=reason):
        osworld(tmp_path, line)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "tasks.toml"
    file.write_text("[osworld]\n")
    monkeypatch.delenv("DART_OSWORLD", raising=False)
    with pytest.raises(ConfigError, match="DART_OSWORLD"):
        tasks.load(file)
    monkeypatch.setenv("DART_OSWORLD", str(tmp_path))
    with pytest.raises(ConfigError, match="no checkout of OSWorld"):
        tasks.load(file)
    monkeypatch.setenv("DART_OSWORLD", str(checkout(tmp_path / "checkout")))
    assert len(tasks.load(file).train) == 12


def test_named_tasks_are_known_without_a_checkout_and_looked_for_in_it(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("DART_OSWORLD", raising=False)
    file = tmp_path / "tasks.toml"
    file.write_text('[osworld]\ntasks = ["os/o1", "vlc/v1", "os/o2"]\nheldout = ["o2"]\ndemonstrations = 2\n')
    found = tasks.load(file)
    assert [task.task_id for task in found.train] == ["osworld/os/o1#0", "osworld/vlc/v1#0"]
    assert [task.page for task in found.heldout] == ["os/o2"]
    assert Counter(task.page for task in found.demonstration) == {"os/o1": 2, "vlc/v1": 2}
    with pytest.raises(ConfigError, match="git clone"):
        tasks.self_contained(file)
    there = checkout(tmp_path / "checkout")
    monkeypatch.setenv("DART_OSWORLD", str(there))
    with pytest.raises(ConfigError, match="has no task os/o1, vlc/v1, os/o2"):
        tasks.self_contained(file)
    for name in ("os/o1", "vlc/v1", "os/o2"):
        path = there / f"evaluation_examples/examples/{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    copy = tasks.parse(msgspec.to_builtins(tasks.self_contained(file)), "a run", Path("/nowhere"))
    assert (copy.train, copy.heldout, copy.demonstration) == (found.train, found.heldout, found.demonstration)


def test_a_self_contained_task_file_means_the_same_elsewhere(tmp_path: Path):
    checkout(tmp_path / "checkout")
    here = osworld(tmp_path)
    copy = msgspec.to_builtins(tasks.self_contained(tmp_path / "tasks.toml"))
    (tmp_path / "checkout").rename(tmp_path / "gone")
    elsewhere = tasks.parse(copy, "a bundle", Path("/nowhere"))
    assert (elsewhere.train, elsewhere.heldout) == (here.train, here.heldout)
