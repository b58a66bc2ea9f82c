"""Substitutes of our own making: what is made, where, and that it says so."""

import sys
from pathlib import Path

import pytest

from dart_streams.errors import ServiceUnavailable
from tests.unit.workers.env.backends.osworld.parsed_tasks import comparison, download, parse_task
from workers.env.backends.osworld import mirror, placeholder_mirror, sidecar, tasks
from workers.env.backends.osworld.mirror import Mirror

BASE = f"https://hub.example/datasets/{mirror.DATASET}/resolve/main/os"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment that can write texts, for which no library is needed."""
    (tmp_path / "env/bin").mkdir(parents=True)
    program = tmp_path / "env/bin/python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return tmp_path / "env"


def task(*names: str, gold: str) -> tasks.OsworldTask:
    files = download(*(f"{BASE}/{name}" for name in names))
    return parse_task(comparison("compare_text_file", f"{BASE}/{gold}"), files)


def test_what_is_missing_is_made_once_and_recorded_as_made(tmp_path, environment):
    (tmp_path / "mirror/os").mkdir(parents=True)
    (tmp_path / "mirror/os/there.txt").write_text("OSWorld's own")
    own = Mirror(tmp_path / "mirror")
    wanted = [task("start.txt", "there.txt", "film.mkv", gold="gold.txt")]
    assert placeholder_mirror.fill(own, wanted, environment) == 2
    assert own.read(f"{BASE}/there.txt") == b"OSWorld's own"
    start, gold = own.read(f"{BASE}/start.txt").decode(), own.read(f"{BASE}/gold.txt").decode()
    assert gold == f"Pear\n{start}", "the finished one has a word more"
    assert own.find(f"{BASE}/film.mkv") is None, "a kind that cannot be made"
    assert {place: known.made for place, known in own.recorded().items() if known.made} == {
        "os/start.txt": True,
        "os/gold.txt": True,
    }
    assert placeholder_mirror.fill(own, wanted, environment) == 0


def test_a_file_that_some_task_starts_from_is_not_finished_for_another(tmp_path, environment):
    (tmp_path / "mirror").mkdir()
    own = Mirror(tmp_path / "mirror")
    assert placeholder_mirror.fill(own, [task("a.txt", gold="b.txt"), task("b.txt", gold="a.txt")], environment) == 2
    assert own.read(f"{BASE}/a.txt") == own.read(f"{BASE}/b.txt")


def test_a_missing_evaluators_environment_names_the_command_to_make_it(tmp_path):
    with pytest.raises(ServiceUnavailable, match="run `make osworld`"):
        placeholder_mirror.fill(Mirror(tmp_path), [], tmp_path / "none")


def test_an_environment_that_cannot_write_says_why(tmp_path, environment):
    (environment / "bin/python").write_text("#!/bin/sh\necho no openpyxl >&2\nexit 1\n")
    with pytest.raises(ServiceUnavailable, match="no openpyxl"):
        placeholder_mirror.fill(Mirror(tmp_path), [task("a.txt", gold="b.txt")], environment)


def test_the_environment_of_the_evaluators_is_found_from_any_folder():
    assert Path(__file__).parents[6] / ".venv/osworld" == sidecar.ENVIRONMENT
