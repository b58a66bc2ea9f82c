"""Settings of a run beside those of its recipes' papers and of the authors' releases.

A recipe's file ``paper.toml`` says what its paper states: ``source``, ``release_source``, and the tables ``[paper]``,
``[release]`` and ``[why]`` (reasons for other values here) by key. Keys that it leaves out are not stated.
"""

from typing import Any

import msgspec

from dart_streams.config.deployment import Config
from dart_streams.config.extras import WITHOUT
from dart_streams.config.files import parse_as
from dart_streams.config.recipes import SETTINGS, known_recipes, recipe_folder, recipe_tables
from dart_streams.config.tables import key_values, read_tables

CORE = "dart"
"""The recipe that a run without any is compared with: its rules are those of the core."""


class Paper(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a recipe's documents state of its paper and of the authors' release, by key."""

    source: str = ""
    release_source: str = ""
    paper: dict[str, Any] = {}
    release: dict[str, Any] = {}
    why: dict[str, Any] = {}


class SettingRow(msgspec.Struct, frozen=True):
    """A key's value in a recipe's paper, in the authors' release, and in this run; None where none is stated.

    ``differs`` if the run leaves the paper, or what its recipes set where the paper states nothing (``recipe_value``).
    """

    recipe: str
    key: str
    paper: Any
    release: Any
    run: Any
    differs: bool
    recipe_value: Any = None
    why: str = ""


class TableRow(msgspec.Struct, frozen=True):
    """A row as a terminal of 80 columns shows it; a star marks what differs from the paper."""

    key: str
    paper: str
    release: str
    this_run: str


def table_row(row: SettingRow) -> TableRow:
    """Return a row as text."""
    paper, release = ("not stated" if value is None else show_value(value) for value in (row.paper, row.release))
    return TableRow(row.key, paper, release, show_value(row.run) + " *" * row.differs)


def read_paper(name: str) -> Paper:
    """Return a recipe's ``paper.toml``; nothing is stated without one."""
    file = recipe_folder(name) / "paper.toml"
    if not file.is_file():
        return Paper()
    stated = parse_as(Paper, read_tables(file, f"no file {file}"), str(file))
    flat = {field: dict(key_values(getattr(stated, field))) for field in ("paper", "release", "why")}
    return msgspec.structs.replace(stated, **flat)


def compare_settings(config: Config) -> list[SettingRow]:
    """Return a row for each key that a recipe of the run states, sets or has, and for each extra."""
    names = config.recipe or ((CORE,) if CORE in known_recipes() else ())
    run = dict(key_values(msgspec.json.decode(msgspec.json.encode(config))))
    given = dict(key_values(recipe_tables(names, run)))
    return [row for name in names for row in rows_of(name, read_paper(name), given, run)]


def rows_of(name: str, paper: Paper, given: dict[str, Any], run: dict[str, Any]) -> list[SettingRow]:
    """Return the rows of one recipe; ``given`` has the values of all chosen recipes and extras."""
    own = [key for key in run if key.startswith(f"{SETTINGS}.{name}.")]
    keys = dict.fromkeys((*paper.paper, *paper.release, *given, *own))
    return [
        SettingRow(
            recipe=name,
            key=key,
            paper=paper.paper.get(key),
            release=paper.release.get(key),
            run=run.get(key),
            differs=run.get(key) != paper.paper.get(key, given.get(key, run.get(key))),
            recipe_value=given.get(key),
            why=paper.why.get(key, ""),
        )
        for key in keys
    ]


def describe_differences(config: Config) -> str:
    """Return one line: how the run's settings differ from the papers of its recipes."""
    if not config.recipe and CORE not in known_recipes():
        return f"settings are not compared with a paper's: the recipe {CORE} is not installed"
    compared = compare_settings(config)
    rows = [row for row in compared if row.differs]
    whose = f"recipe {' and '.join(config.recipe)}" if config.recipe else f"no recipe, compared with {CORE}"
    if not rows:
        has_paper = any(row.paper is not None for row in compared)
        return f"{whose}: no setting differs from its paper" if has_paper else f"{whose}: its paper states no setting"
    texts = ", ".join(f"{row.key} {show_value(row.run)} ({expected_text(row)})" for row in rows)
    count = f"{len(rows)} setting{'s' * (len(rows) != 1)}"
    return f"{whose}: {count} differ{'s' * (len(rows) == 1)} from the paper's: {texts}"


def expected_text(row: SettingRow) -> str:
    """Return what a row's run leaves, as text: the paper's value, or what the paper does not have."""
    if row.paper is not None:
        return show_value(row.paper)
    expected = show_value(row.recipe_value)
    return f"{expected}: not in the paper" if row.key in WITHOUT else f"the recipe's is {expected}"


def show_value(value: Any) -> str:
    """Return a value as JSON, text without quotes; a run without the key has none."""
    if value is None:
        return "absent"
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value
