"""What is said where code runs without its distribution, and so without any entry point."""

import importlib.metadata

import pytest

from dart_streams.config import load, parse
from dart_streams.config.backends import find_backend
from dart_streams.errors import ConfigError


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.metadata.MetadataPathFinder, "find_distributions", lambda *context: iter(()))


def test_a_recipe_that_nothing_brings_says_what_to_install(tmp_path):
    with pytest.raises(ConfigError, match=r"no recipe 'dart-x': no installed package .* its wheel, or its checkout"):
        parse({"recipe": "dart-x"})
    file = tmp_path / "dart.toml"
    file.write_text('recipe = "dart-x"\n')
    with pytest.raises(ConfigError, match="training_recipes', not even dart-streams"):
        load(file)


def test_a_backend_that_nothing_brings_says_what_to_install():
    with pytest.raises(ConfigError, match=r"known are miniwob, simulated\. no installed package .* its wheel"):
        find_backend("openenv")
