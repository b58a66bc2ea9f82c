"""Tasks of phones: each is determined by its seed, and its start is not its goal."""

import os
import re
import zipfile

import msgspec
import pytest

from dart_phones import installation, process
from dart_phones.families import FAMILIES, SETTINGS, SIZES, make_state, problem_of
from dart_streams.config import load, parse, tasks
from dart_streams.errors import ConfigError, ServiceUnavailable
from tests.sources import ROOT
from workers.env.environment import EnvironmentFault

SEEDS = range(50)


def java_names(file: str, name: str) -> tuple[str, ...]:
    """Return the names of a constant of the applications."""
    [found] = re.findall(rf"{name} = \{{(.*?)\}}", (installation.SOURCES / file).read_text())
    return tuple(re.findall(r'"(.*?)"', found))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_determines_a_task_and_the_start_is_not_the_goal(family):
    texts = set()
    for seed in SEEDS:
        first, again = problem_of(family, seed), problem_of(family, seed)
        assert (first.instruction, first.start, first.goal) == (again.instruction, again.start, again.goal)
        assert first.start != first.goal
        assert first.start.keys() == first.goal.keys() == make_state().keys()
        texts.add(msgspec.json.encode((first.instruction, first.start)))
    assert len(texts) > 5


@pytest.mark.parametrize("family", FAMILIES)
def test_the_goal_differs_in_the_kept_values_of_one_app(family):
    for seed in SEEDS:
        problem = problem_of(family, seed)
        assert sum(problem.start[name] != problem.goal[name] for name in problem.start) == 1


def test_names_are_those_of_the_applications():
    assert java_names("SettingsApp.java", "NAMES") == SETTINGS
    assert java_names("SurveyApp.java", "SIZES") == SIZES
    apps = set(re.findall(r'BY_NAME.put\("(\w+)"', (installation.SOURCES / "Apps.java").read_text()))
    assert {problem_of(family, 0).app for family in FAMILIES} == apps


def test_an_unknown_family_names_the_known_ones():
    with pytest.raises(EnvironmentFault, match="no phone family 'x': there are setting, contact"):
        problem_of("x", 0)


def test_the_demonstration_has_four_families_on_a_screen_of_few_tokens():
    demonstration = load(ROOT / "deploy/config/phone.toml")
    task_set = tasks.load(ROOT / "deploy/config" / demonstration.tasks.file)
    pages = {task.page for task in task_set.train}
    assert len(pages & FAMILIES.keys()) == len(pages) == 4
    assert {task.page for task in task_set.heldout} == {task.page for task in task_set.demonstration} == pages
    assert len(task_set.heldout) == demonstration.evaluation.episodes, "each held-out task is played once"
    assert len(task_set.demonstration) >= demonstration.warmup.demonstrations
    assert max(demonstration.env.phone.width, demonstration.env.phone.height) <= 256, "a coordinate is one token"


@pytest.mark.parametrize(
    ("keys", "qualifiers"),
    [
        ({}, "w360dp-h640dp-port-ldpi"),
        ({"width": 360, "height": 720, "dpi": 160}, "w360dp-h720dp-port-mdpi"),
        ({"width": 480, "height": 240}, "w640dp-h320dp-land-ldpi"),
    ],
)
def test_the_screen_is_given_in_androids_units(keys, qualifiers):
    assert parse({"env": {"backend": "phone", "phone": keys}}).env.phone.qualifiers == qualifiers


def test_a_size_of_no_whole_number_of_units_is_refused():
    with pytest.raises(ConfigError, match="width is a multiple of 3 at 120 dpi"):
        parse({"env": {"phone": {"width": 271}}})


def test_of_the_folders_of_episodes_the_newest_stays(tmp_path):
    for age_s, name in ((2, "b"), (1, "a"), (3, "c")):
        path = tmp_path / f"{process.EPISODE}{name}"
        path.mkdir()
        (path / "file").write_text("")
        os.utime(path, (1000 - age_s, 1000 - age_s))
    (tmp_path / "log").write_text("")
    process.remove_all_but_newest(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{process.EPISODE}a", "log"}


def test_without_jars_the_command_that_installs_is_named(tmp_path):
    with pytest.raises(ServiceUnavailable, match="run `make phone`"):
        installation.ensure_built(tmp_path)


def test_a_native_runtime_keeps_its_used_parts_only(tmp_path):
    names = (
        "native/linux/a.so",
        "native/mac/a.dylib",
        "native/windows/a.dll",
        "fonts/NotoSansCJK-Bold.ttc",
        "fonts/b.ttf",
    )
    with zipfile.ZipFile(tmp_path / "all.jar", "w") as archive:
        for name in names:
            archive.writestr(name, name)
    installation.copy_used_parts(tmp_path / "all.jar", tmp_path / "used.jar")
    with zipfile.ZipFile(tmp_path / "used.jar") as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == {
            "native/linux/a.so": "native/linux/a.so",
            "fonts/b.ttf": "fonts/b.ttf",
        }
