"""The changelog has a section for the version of the package, and its entries stay short."""

import re
import tomllib

import pytest

from tests.sources import ROOT

TEXT = (ROOT / "CHANGELOG.md").read_text()
MAX_CHARS = 240
ENTRIES = re.findall(r"^- .+(?:\n {2}\S.*)*", TEXT, re.MULTILINE)
"""The items of the lists, each with its continuation lines."""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry[2:40])
def test_an_entry_has_at_most_240_characters(entry: str):
    assert len(" ".join(entry.split())) <= MAX_CHARS


def test_unreleased_comes_first_and_then_the_version_of_the_package():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    headings = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", headings[1])


def test_there_are_entries_and_releases_are_in_falling_order():
    numbers = re.findall(r"^## (\d+)\.(\d+)\.(\d+) - ", TEXT, re.MULTILINE)
    assert [tuple(map(int, number)) for number in numbers] == sorted(
        (tuple(map(int, n)) for n in numbers), reverse=True
    )
    assert len(ENTRIES) > 100
