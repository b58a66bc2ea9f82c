"""The page on GPUs names tests that exist, figures that were measured, and keys that the GPU benchmark does not set."""

import ast
import json
import re
from datetime import date
from pathlib import Path

import pytest

from docs.reference import iterate_keys

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/gpu.md").read_text()
PROOF, MEASURED = (
    PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    for title in ("What was proven where", "Measured on a GPU")
)
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PROOF.splitlines()
    if line.startswith("| ") and not line.startswith("| part")
]
NEVER_RUN = set(re.findall(r"`([\w.]+)`", "\n".join(line for line in PROOF.splitlines() if line.startswith("- "))))
LATER_TABLES = ("hardware", "launch")
MEASURED_BY_CPU = {"hardware.cores"}
"""Has nothing to do with GPUs."""


def strings_of(folder: Path) -> set[str]:
    """Return the string constants of a package's modules."""
    nodes = [node for file in folder.glob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_the_table_has_a_row_for_each_part():
    assert len(ROWS) >= 12
    assert {len(row) for row in ROWS} == {4}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_part_is_proven_by_files_of_tests_that_exist(row: list[str]):
    files = re.findall(r"`(tests/[\w/]+\.py)`", row[1])
    assert files
    assert not [
        file for file in files if not re.search(r"^(async )?def test_", (ROOT / file).read_text(), re.MULTILINE)
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_figure_of_a_gpu_has_the_date_and_is_among_the_measured_ones(row: list[str]):
    if row[2] == "no":
        return
    day = date.fromisoformat(json.loads((ROOT / "docs/data/gpu.json").read_text())["machine"]["date"])
    when, _, figures = row[2].partition(":")
    assert when == f"{day.day} {day:%B %Y}"
    numbers = re.findall(r"\d[\d,.]*\d", figures)
    assert numbers
    assert not [number for number in numbers if number not in MEASURED]


def test_keys_that_never_ran_on_a_gpu_are_not_set_by_its_benchmark():
    assert NEVER_RUN
    assert not {key.rpartition(".")[2] for key in NEVER_RUN} & strings_of(ROOT / "benchmarks/gpu")


def test_the_keys_of_placement_and_scripts_are_among_them():
    keys = {key.place for key in iterate_keys() if key.table in LATER_TABLES} - MEASURED_BY_CPU
    assert keys
    assert keys <= NEVER_RUN
