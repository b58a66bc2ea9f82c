"""The variants of a comparison: one deployment, and for each name what differs from it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.config import Config, parse
from dart_streams.config.files import parse_as, read_tables
from dart_streams.errors import ConfigError

BASE = "base"
FILE = Path(__file__).with_name("variants.toml")


class VariantFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: a ``deployment``, and for each of the ``variants`` the keys that differ.

    ``tasks`` is a task file in place of the deployment's, ``base`` what else differs from it for all variants. Both
    files are relative to this one.
    """

    deployment: str
    tasks: str = ""
    base: dict[str, Any] = {}
    variants: dict[str, dict[str, Any]]


def read(file: Path = FILE) -> dict[str, Config]:
    """Return the configuration of each variant by its name, the base first.

    Raises
    ------
    ConfigError
        If a file is missing or wrong, or a variant is no configuration or the same as the base.
    """
    listed = parse_as(VariantFile, read_tables(file, f"no variants file {file}"), str(file))
    deployment = file.parent / listed.deployment
    tables = read_tables(deployment, f"{file}: no deployment {deployment}")
    own = deployment.parent / parse(tables, str(deployment)).tasks.file
    tasks = file.parent / listed.tasks if listed.tasks else own
    tables = merge_tables(merge_tables(tables, listed.base), {"tasks": {"file": str(tasks.resolve())}})
    found = {BASE: parse(tables, f"{file}: the base")}
    for name, overrides in listed.variants.items():
        made = parse(merge_tables(tables, overrides), f"{file}: variant {name!r}")
        if name == BASE or made == found[BASE]:
            raise ConfigError(f"{file}: variant {name!r} has to differ from the base")
        found[name] = made
    return found


def merge_tables(tables: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with the keys of others over their own."""
    result = dict(tables)
    for key, value in overrides.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge_tables(result[key], value) if both else value
    return result


def select_variants(known: Mapping[str, Config], names: Sequence[str]) -> dict[str, Config]:
    """Return the variants of these names, the base always first, or all if none is named.

    Raises
    ------
    ConfigError
        If there is none of a name.
    """
    if missing := [name for name in names if name not in known]:
        raise ConfigError(f"no variant {missing[0]!r}: known are {', '.join(known)}")
    return {name: config for name, config in known.items() if not names or name in (BASE, *names)}
