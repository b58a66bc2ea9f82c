"""Recipes: packages with settings and rules that a run chooses by name.

A recipe is a package of the entry point group :data:`ENTRY_POINTS`. Its file ``recipe.toml`` has the keys that it
needs; what no chosen recipe names of :data:`dart_streams.config.extras.WITHOUT` is off. The run's own file wins over
both. Its module ``rules`` has the rules that it replaces, and ``Settings``, the type of its table ``[recipes.NAME]``.
"""

import difflib
import functools
import importlib
import importlib.util
from collections.abc import Container, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from dart_streams.config.entry_points import known_names, missing_advice
from dart_streams.config.extras import reset_tables
from dart_streams.config.section import Section
from dart_streams.config.tables import key_values, merge_tables, read_tables
from dart_streams.errors import ConfigError

ENTRY_POINTS = "dart_streams.training_recipes"
CHOICE, SETTINGS = "recipe", "recipes"
"""The keys of a configuration file: the chosen recipes, and the tables of their settings."""


def known_recipes() -> list[str]:
    """Return the names of all installed recipes."""
    return known_names(ENTRY_POINTS)


@functools.cache  # A look at every installed distribution takes tens of milliseconds.
def find_recipe(name: str) -> str:
    """Return the package of recipe ``name``; raise ConfigError unless exactly one is installed."""
    packages = {entry.value for entry in entry_points(group=ENTRY_POINTS, name=name)}
    if not packages:
        known = known_recipes()
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        others = f"known are {', '.join(known)}" if known else missing_advice(name, "recipes")
        hint = f"did you mean {near[0]!r}?" if near else others
        raise ConfigError(f"{CHOICE}: no recipe {name!r}: {hint}")
    if len(packages) > 1:
        raise ConfigError(f"{CHOICE}: {name!r} is brought by {' and by '.join(sorted(packages))}: uninstall one")
    return packages.pop()


def recipe_folder(name: str) -> Path:
    """Return the folder of a recipe's package."""
    package = find_recipe(name)
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"{CHOICE}: {name!r} names the package {package}, which is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def rules_module(name: str, module: str = "rules") -> ModuleType | None:
    """Return a module of a recipe; None if it has none of this name."""
    package = find_recipe(name)
    if importlib.util.find_spec(f"{package}.{module}") is None:
        return None
    return importlib.import_module(f"{package}.{module}")


def settings_type(name: str) -> type[Section]:
    """Return the type of a recipe's table; a recipe without settings has the empty one."""
    kind: type[Section] = getattr(rules_module(name), "Settings", Section)
    return kind


def chosen_recipes(tables: dict[str, Any]) -> tuple[str, ...]:
    """Return the recipes that a configuration file names: ``recipe`` is one name or a list of names."""
    chosen = tables.get(CHOICE, ())
    names = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{CHOICE}: expected a name or a list of names, got {chosen!r}")
    return tuple(dict.fromkeys(names))


def recipe_tables(names: Sequence[str], own: Container[str] = ()) -> dict[str, Any]:
    """Return the keys of several recipes together, over those without any rule; none without a recipe.

    Raises ConfigError for an unknown recipe, and for two that set one key to different values, unless it is among the
    run's ``own`` keys.
    """
    merged: dict[str, Any] = reset_tables() if names else {}
    origins: dict[str, tuple[str, Any]] = {}
    for name in names:
        tables = read_tables(recipe_folder(name) / "recipe.toml", f"{CHOICE}: {name!r} has no file recipe.toml")
        for key, value in key_values(tables):
            other, present = origins.setdefault(key, (name, value))
            if present != value and key not in own:
                raise ConfigError(
                    f"{CHOICE}: {other!r} sets {key} to {present!r} and {name!r} to {value!r}: set {key} in the file, "
                    "or leave one of them out"
                )
        merged = merge_tables(merged, tables)
    return merged


def merge_recipes(tables: dict[str, Any]) -> dict[str, Any]:
    """Return a file's tables with the keys of its recipes where it has none; ``recipe`` becomes a list."""
    names = chosen_recipes(tables)
    if not names:
        return tables
    own = {key for key, _ in key_values(tables)}
    return {**merge_tables(recipe_tables(names, own), tables), CHOICE: list(names)}


def override_tables(tables: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return tables with overrides; the keys of recipes that the overrides choose win over the tables too.

    Settings of recipes that are no longer chosen are left out.
    """
    own, chosen = {key for key, _ in key_values(overrides)}, chosen_recipes(overrides)
    if CHOICE in overrides and isinstance(settings := tables.get(SETTINGS), dict):
        tables = {**tables, SETTINGS: {name: table for name, table in settings.items() if name in chosen}}
    return merge_tables(merge_tables(tables, recipe_tables(chosen, own)), overrides)


def resolve_settings(tables: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of each chosen recipe, with every default filled in."""
    given = tables.get(SETTINGS, {})
    chosen = {name: settings_type(name) for name in chosen_recipes(tables)}
    found = {name: msgspec.to_builtins(msgspec.convert(given.get(name, {}), kind)) for name, kind in chosen.items()}
    return {name: settings for name, settings in found.items() if settings}


def unnamed_settings(tables: dict[str, Any]) -> Iterator[str]:
    """Yield an error for each table of settings whose recipe is not chosen."""
    given = tables.get(SETTINGS, {})
    for name in given if isinstance(given, dict) else ():
        if name not in chosen_recipes(tables):
            yield f"{SETTINGS}.{name}: {CHOICE} does not name {name!r}: add it, or leave the table out"
