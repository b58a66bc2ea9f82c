"""Variants of a comparison: one deployment with overrides by name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.config import Config, parse, recipes
from dart_streams.config.files import parse_as
from dart_streams.config.tables import merge_tables, read_tables
from dart_streams.errors import ConfigError

BASE = "base"
FILE = Path(__file__).with_name("variants.toml")


class VariantFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``deployment`` and each variant's overrides; ``tasks`` and ``base`` override for all. Paths are relative.

    With ``every_recipe`` each installed recipe is a variant too, unless it changes nothing here, or needs what recorded
    screens do not have.
    """

    deployment: str
    tasks: str = ""
    base: dict[str, Any] = {}
    every_recipe: bool = False
    variants: dict[str, dict[str, Any]] = {}


def read(file: Path = FILE) -> dict[str, Config]:
    """Return each variant's configuration, base first; raise ConfigError for an invalid or identical one."""
    listed = parse_as(VariantFile, read_tables(file, f"no variants file {file}"), str(file))
    deployment = file.parent / listed.deployment
    tables = read_tables(deployment, f"{file}: no deployment {deployment}")
    own = deployment.parent / parse(tables, str(deployment)).tasks.file
    tasks = file.parent / listed.tasks if listed.tasks else own
    tables = merge_tables(merge_tables(tables, listed.base), {"tasks": {"file": str(tasks.resolve())}})
    base = parse(tables, f"{file}: the base")
    if pages := base.env.miniwob.pages_folder:
        folder = str((deployment.parent / pages).resolve())
        tables = merge_tables(tables, {"env": {"miniwob": {"pages_folder": folder}}})
        base = parse(tables, f"{file}: the base")
    found = {BASE: base}
    for name, overrides in listed.variants.items():
        made = parse(recipes.override_tables(tables, overrides), f"{file}: variant {name!r}")
        if name == BASE or made == found[BASE]:
            raise ConfigError(f"{file}: variant {name!r} must differ from the base")
        found[name] = made
    for name in recipes.known_recipes() if listed.every_recipe else ():
        made = parse(recipes.override_tables(tables, {"recipe": name}), f"{file}: recipe {name!r}")
        changes = msgspec.structs.replace(made, recipe=()) != base or recipes.rules_module(name)
        if changes and not left_out_reason(name, made):
            found.setdefault(name, made)
    return found


def left_out_reason(name: str, config: Config) -> str:
    """Return why a recipe can't be compared on recorded screens, empty if it can."""
    if not config.run.trains:
        return "it does not train"
    training = getattr(recipes.rules_module(name, "training"), "RULES", None)
    if recipes.rules_module(name, "judging") or (training and training.score):
        return "it asks a server"
    own = msgspec.to_builtins(msgspec.convert(config.recipes.get(name, {}), recipes.settings_type(name)))
    empty = [key for key, value in own.items() if key.endswith("_file") and not value]
    return f"recipes.{name}.{empty[0]} is not set" if empty else ""


def select_variants(known: Mapping[str, Config], names: Sequence[str]) -> dict[str, Config]:
    """Return the base and the named variants, or all; raise ConfigError for an unknown name."""
    if missing := [name for name in names if name not in known]:
        raise ConfigError(f"no variant {missing[0]!r}: known are {', '.join(known)}")
    return {name: config for name, config in known.items() if not names or name in (BASE, *names)}
