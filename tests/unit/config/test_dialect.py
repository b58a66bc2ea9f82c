"""How the policy writes its actions: which keys go together, and what is refused with which words."""

import tomllib

import msgspec
import pytest

from dart_streams import config
from dart_streams.actions.dialects import Computer13, Native, QwenComputerUse, UiTars
from dart_streams.config.dialect import KEYS, ActionDialect
from dart_streams.errors import ConfigError
from dart_streams.screens import smart_resize
from tests.sources import ROOT


def parsed(**dialect: str) -> config.Config:
    return config.parse({"policy": {"max_tokens": 400, "dialect": dialect}})


@pytest.mark.parametrize(
    ("table", "made"),
    [
        ({}, Native()),
        ({"name": "ui-tars"}, UiTars()),
        (
            {"name": "ui-tars", "coordinates": "relative", "prompt": "box", "language": "Chinese", "several": "all"},
            UiTars(coordinates="relative", prompt="box", language="Chinese", several="all"),
        ),
        ({"name": "qwen-computer-use", "strictness": "lenient"}, QwenComputerUse(strictness="lenient")),
        ({"name": "computer_13", "coordinates": "relative"}, Computer13(coordinates="relative")),
    ],
)
def test_a_table_makes_its_dialect(table, made):
    assert parsed(**table).policy.dialect.build() == made


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"coordinates": "relative"}, ["policy.dialect", 'coordinates = "relative"', 'name = "native"', '"ui-tars"']),
        ({"several": "all"}, ['several = "all"', 'name = "native"']),
        ({"name": "qwen-computer-use", "language": "Chinese"}, ['language = "Chinese"', 'name = "qwen-computer-use"']),
    ],
)
def test_keys_that_do_not_go_together_are_named(table, words):
    with pytest.raises(ConfigError) as refusal:
        parsed(**table)
    assert [word for word in words if word not in str(refusal.value)] == []


def test_the_example_of_the_documentation_is_a_configuration():
    example = (ROOT / "docs/how-to/dialects.md").read_text().partition("```toml\n")[2].partition("```")[0]
    policy = config.parse(tomllib.loads(example)).policy
    assert policy.dialect.build() == UiTars(several="all")
    assert smart_resize(1920, 1080, policy.min_pixels, policy.max_pixels) == (1932, 1092)


def test_each_key_belongs_to_a_dialect():
    fields = {field.name for field in msgspec.structs.fields(ActionDialect)}
    assert set().union(*KEYS.values()) | {"name"} == fields
