"""The tutorial's files are those of the example, and the example's configuration is one."""

from pathlib import Path

import pytest

from dart_streams.config import load, tasks
from tests.sources import ROOT

EXAMPLE = ROOT / "examples/own_page"


@pytest.mark.parametrize("name", ["order.html", "tasks.toml", "cafe.toml"])
def test_the_tutorial_has_the_example(name: str):
    text = (ROOT / "docs/tutorial.md").read_text()
    assert f"```{name.rpartition('.')[2]}\n{(EXAMPLE / name).read_text()}```" in text


def test_its_folder_is_relative_to_the_configuration():
    config = load(EXAMPLE / "cafe.toml")
    assert Path(config.env.miniwob.pages_folder) == EXAMPLE
    assert {task.page for task in tasks.load(EXAMPLE / config.tasks.file).train} == {"order"}
