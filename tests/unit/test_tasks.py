from pathlib import Path

import pytest

from dart_streams import tasks
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
    loaded = tasks.load(write(tmp_path, ("click-test-2", "0, 3", "100, 102")))
    assert [task.task_id for task in loaded.train] == [f"miniwob/click-test-2#{seed}" for seed in (0, 1, 2)]
    assert [task.seed for task in loaded.heldout] == [100, 101]
    assert loaded.get("miniwob/click-test-2#101").split == "heldout"


@pytest.mark.parametrize("heldout", ["2, 4", "0, 3", "0, 1"])
def test_training_and_held_out_seeds_never_overlap(tmp_path: Path, heldout: str):
    with pytest.raises(ConfigError, match="overlap"):
        tasks.load(write(tmp_path, ("click-test-2", "0, 3", heldout)))


def test_adjacent_ranges_do_not_overlap(tmp_path: Path):
    assert len(tasks.load(write(tmp_path, ("click-test-2", "0, 3", "3, 5"))).heldout) == 2


def test_a_page_listed_twice_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="listed twice"):
        tasks.load(write(tmp_path, ("p", "0, 3", "10, 12"), ("p", "2, 4", "20, 22")))


def test_an_unknown_task_is_named(tmp_path: Path):
    loaded = tasks.load(write(tmp_path, ("p", "0, 3", "10, 12")))
    with pytest.raises(ConfigError, match="unknown task 'miniwob/p#3'"):
        loaded.get("miniwob/p#3")
    assert "miniwob/p#3" not in loaded


def test_an_unknown_key_of_a_page_is_named_with_the_nearest(tmp_path: Path):
    file = write(tmp_path, ("p", "0, 3", "10, 12"))
    file.write_text(file.read_text().replace("train_seeds", "train_seed"))
    with pytest.raises(ConfigError, match=r"unknown key 'pages\[0\]\.train_seed': did you mean 'train_seeds'\?"):
        tasks.load(file)


def test_a_missing_file_says_where_the_setting_is(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no task set .*none\.toml: set tasks\.file"):
        tasks.load(tmp_path / "none.toml")
