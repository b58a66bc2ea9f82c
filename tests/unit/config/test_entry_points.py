"""What is said where no plug-in is installed, and so no entry point."""

import importlib.metadata

import pytest

import dart_streams
from dart_streams.config import load, parse
from dart_streams.config.backends import find_backend
from dart_streams.errors import ConfigError, UserError
from workers.env.backends.registry import backend_of


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.metadata.MetadataPathFinder, "find_distributions", lambda *context: iter(()))


def test_a_recipe_or_backend_that_nothing_brings_says_what_to_install(tmp_path):
    with pytest.raises(ConfigError, match=r"no recipe 'dart-x': dart-recipes is not installed here: run `make dev`"):
        parse({"recipe": "dart-x"})
    file = tmp_path / "dart.toml"
    file.write_text('recipe = "dart-x"\n')
    with pytest.raises(ConfigError, match="dart-recipes is not installed here"):
        load(file)
    with pytest.raises(ConfigError, match=r"known are miniwob, simulated\. dart-adapters is not installed here: run"):
        find_backend("openenv")


def test_a_part_that_nothing_brings_says_what_to_install():
    with pytest.raises(UserError, match=r"run\.open: dart-data is not installed here"):
        dart_streams.open()
    with pytest.raises(UserError, match=r"env\.mcp: dart-adapters is not installed here"):
        backend_of(parse({"env": {"mcp": {"servers": [{"name": "a", "command": ["b"]}]}}}))
