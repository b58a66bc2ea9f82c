"""Counts that the documentation states are those of the code and its data."""

import json
import tomllib
from pathlib import Path

import pytest

from dart_streams import crash_points
from dart_streams.config import tasks
from dart_streams.config.hardware import MachineSize, size_tables

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def test_the_fault_matrix_counts_the_crash_points():
    assert f"killed at {len(crash_points.WORKERS)} crash points" in (DOCS / "reliability.md").read_text()


def test_the_page_of_dialects_counts_the_answers_of_ui_tars():
    answers = json.loads((ROOT / "tests/unit/actions/ui_tars_answers.json").read_text())["answers"]
    assert f"has {len(answers)} answers" in (DOCS / "how-to/dialects.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_demonstration_has_these_sizes_on_two_cores(page: str):
    tables = tomllib.loads((ROOT / "deploy/config/demo.toml").read_text())
    env = size_tables(tables, MachineSize(cores=2, memory_gib=24.0, gpu=False))["env"]
    assert env["miniwob"]["browsers"] == 2
    assert f"{env['slots']} environments play MiniWoB++ pages in two Chromiums" in (ROOT / page).read_text()


def test_the_changelog_counts_the_pages_of_the_demonstration():
    pages = {task.page for task in tasks.load(ROOT / "deploy/config/tasks.toml").train}
    assert len(pages) == 12
    assert "The demonstration has twelve pages" in (ROOT / "CHANGELOG.md").read_text()
