"""Tables of TOML files: reading, keys by their whole place, merging."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dart_streams.config.text import text_of
from dart_streams.errors import ConfigError

MAX_DEPTH = 32
"""Levels of tables and lists in a file, a multiple of what any key has."""
TOO_DEEP = f"is nested too deeply: tables and lists may have {MAX_DEPTH} levels"


def read_tables(path: Path, missing: str) -> dict[str, Any]:
    """Read a TOML file; raise :class:`ConfigError`, with the text ``missing`` if it is not there."""
    try:
        tables = tomllib.loads(text_of(path.read_bytes(), str(path)))
    except FileNotFoundError:
        raise ConfigError(missing) from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path} {TOO_DEEP}") from None
    except ValueError as error:  # of TOML, or of a number with thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from None
    if depth_of(tables) > MAX_DEPTH:
        raise ConfigError(f"{path} {TOO_DEEP}")
    return tables


def depth_of(tables: dict[str, Any]) -> int:
    """Return the depth of nested tables and lists, without recursion: a dotted key may have thousands of parts."""
    depth, level = 0, list[Any]([tables])
    while level:
        depth += 1
        inner = [value for outer in level for value in (outer.values() if isinstance(outer, dict) else outer)]
        level = [value for value in inner if isinstance(value, dict | list)]
    return depth


def key_values(tables: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key's whole place and value."""
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from key_values(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def put_key(tables: dict[str, Any], place: str, value: Any) -> None:
    """Set a key unless it is set; raise :class:`ConfigError` if a table of its place is a value."""
    *sections, key = place.split(".")
    for section in sections:
        tables = tables.setdefault(section, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{place}: {section} is a value, not a table")
    tables.setdefault(key, value)


def set_key(tables: dict[str, Any], setting: str) -> None:
    """Set one key in nested tables, such as ``curation.entropy.keep=0.5``; text that is not TOML is a string."""
    place, equals, text = setting.partition("=")
    *sections, key = place.strip().split(".")
    if not equals or not all([*sections, key]):
        raise ConfigError(f"{setting!r} is no setting: give key=value, for instance curation.entropy.keep=0.5")
    for section in sections:
        tables = tables.setdefault(section, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{setting!r}: {section!r} is a value, not a table")
    try:
        tables[key] = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        tables[key] = text.strip()


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return the tables of ``key=value`` settings; raise :class:`ConfigError` for one that is none."""
    tables: dict[str, Any] = {}
    for setting in settings:
        set_key(tables, setting)
    return tables


def merge_tables(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of both; those of ``above`` win, table by table. Lists are values."""
    merged = dict(below)
    for key, value in above.items():
        lower = merged.get(key)
        merged[key] = merge_tables(lower, value) if isinstance(lower, dict) and isinstance(value, dict) else value
    return merged


def drop_defaults(tables: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the keys whose values differ from the defaults, in their tables."""
    changed: dict[str, Any] = {}
    for key, value in tables.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            if inner := drop_defaults(value, default):
                changed[key] = inner
        elif value != default:
            changed[key] = value
    return changed
