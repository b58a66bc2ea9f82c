"""The lanes of tests: what each covers, when CI runs it, and that make, CI and CONTRIBUTING.md know all of them."""

import re

import pytest

from tests.lanes import LANES, OF_ALL, lanes_of_ci
from tests.sources import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
EACH_TIME = {lane.target for lane in LANES if lane.when == "each time"}
TREE = [f"100644 blob 0\t{path}" for path in (*OF_ALL, "README.md", *(lane.covers[0] + "one" for lane in LANES))]
PASSED = {lane.target: lane.digest(TREE) for lane in LANES}


def targets(path: str) -> set[str]:
    """Return the long lanes that CI runs after a change of a file, all of which have passed before it."""
    return {lane.target for lane in lanes_of_ci([*TREE, f"100644 blob 1\t{path}"], PASSED)} - EACH_TIME


def test_a_lane_that_takes_long_runs_if_a_file_that_it_covers_changed():
    assert targets("README.md") == targets("workers/runtime/lifecycle.py") == set()
    assert targets("plugins/recipes/pyproject.toml") == {"test-models"}
    assert targets("plugins/desktops/dart_desktops/server/ports.py") == {"test-desktops", "test-osworld"}


def test_every_lane_of_ci_runs_where_its_pass_or_the_files_are_not_known():
    everything = {lane.target for lane in LANES if lane.when != "by hand"}
    assert {lane.target for lane in lanes_of_ci(None, PASSED)} == everything
    assert {lane.target for lane in lanes_of_ci(TREE, {})} == everything
    assert all(targets(file) | EACH_TIME == everything for file in OF_ALL)


def test_each_long_lane_of_ci_records_that_it_passed():
    recorded = re.findall(r"^(test-\w+): .*\n(?:\t.*\n)+?\t@\$\(PASSED\) \$@$", MAKEFILE, re.MULTILINE)
    assert sorted(recorded) == sorted(lane.target for lane in LANES if lane.when == "if covered files changed")


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.target)
def test_a_lane_is_a_target_and_covers_files_that_are_there(lane):
    assert f"\n{lane.target}: " in MAKEFILE
    assert [path for path in (*lane.covers, *OF_ALL) if not any(ROOT.glob(f"{path.rstrip('/')}*"))] == []


def test_every_folder_that_make_test_leaves_out_has_a_lane():
    (folders,) = re.findall(r"addprefix --ignore=tests/,([\w/ ]+)\)", MAKEFILE)
    left_out = {f"tests/{folder}/" for folder in folders.split()} - {"tests/unit/", "tests/model/"}
    left_out |= {f"{folder}/" for folder in re.findall(r"--ignore=(tests/\w[\w/]*)", MAKEFILE)}
    assert len(left_out) > 5 and "tests/model/breadth/" in left_out
    assert [folder for folder in left_out if not any(folder.startswith(lane.covers) for lane in LANES)] == []


def test_what_the_units_leave_out_of_the_recipes_tests_is_run_by_a_lane():
    (folders,) = re.findall(r"addprefix --ignore=plugins/recipes/tests/,([\w ]+)\)", MAKEFILE)
    commands = re.findall(r"-m pytest (.+)", MAKEFILE.partition("\ntest-models: ")[2].partition("\n\n")[0])
    assert [folder for folder in folders.split() if f"plugins/recipes/tests/{folder}" not in " ".join(commands)] == []


def test_contributing_has_each_lane_with_its_paths_and_its_minutes():
    rows = re.findall(r"^\| (.+) \| `make ([\w-]+)` \| (.+) \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert [(target, tuple(re.findall("`(.+?)`", paths)), when) for paths, target, _, when in rows] == [
        (lane.target, lane.covers, lane.when) for lane in LANES
    ]


def test_ci_runs_the_lanes_of_the_table_alone():
    run = (ROOT / ".ci/run").read_text()
    assert "-m tests.lanes" in run
    assert set(re.findall(r"^ *make ([\w-]+)$", run, re.MULTILINE)) == {"test", "lint"}
