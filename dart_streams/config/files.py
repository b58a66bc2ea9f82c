"""Reading of configuration files: TOML into frozen structs, reporting every error of a file at once."""

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from dart_streams.config import hardware
from dart_streams.config.connections import anchor_paths
from dart_streams.config.deployment import Config
from dart_streams.config.recorded import upgrade_recorded
from dart_streams.config.text import text_of
from dart_streams.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

MAX_DEPTH = 32
"""Levels of tables and lists in a file, a multiple of what any key has."""
TOO_DEEP = f"is nested too deeply: tables and lists may have {MAX_DEPTH} levels"


def load(path: Path, *, recorded: bool = False) -> Config:
    """Read a configuration file; ``recorded`` accepts the keys of earlier versions, as run folders have them.

    Raises :class:`ConfigError` with every error if the file is missing, is no TOML, or has wrong keys or values.
    """
    data = read_tables(path, f"no configuration file {path}: name one, for instance deploy/config/demo.toml")
    data = hardware.size_tables(data, hardware.read_machine())
    config = parse(upgrade_recorded(data, str(path)) if recorded else data, source=str(path))
    return anchor_paths(config, path.parent)


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


def parse(data: dict[str, Any], source: str = "configuration") -> Config:
    """Turn tables into a :class:`Config`; raise :class:`ConfigError` with every wrong key."""
    return parse_as(Config, data, source)


def parse_as(struct: type[T], data: Any, source: str) -> T:
    """Turn tables into ``struct``; raise :class:`ConfigError` with every wrong key."""
    if errors := list(errors_of(struct, data)):
        text = f" {errors[0]}" if len(errors) == 1 else "".join(f"\n  {error}" for error in errors)
        raise ConfigError(f"{source}:{text}")
    return msgspec.convert(data, struct)


def errors_of(struct: type[msgspec.Struct], data: Any, place: str = "") -> Iterator[str]:
    """Yield a table's unknown keys, wrong values, and wrong combinations."""
    if not isinstance(data, dict):
        yield f"{place}: expected a table, got {type(data).__name__}"
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    wrong: list[str] = []
    for key, value in data.items():
        where = f"{place}.{key}" if place else key
        wrong += value_errors(fields[key], value, where) if key in fields else [unknown_key(key, where, list(fields))]
    yield from wrong
    if missing := [name for name, field in fields.items() if field.required and name not in data]:
        yield f"{place or 'the file'}: lacks {', '.join(missing)}"
    elif not wrong and (error := validation_error(data, struct)):
        yield f"{place}: {error}" if place else error


def value_errors(field: msgspec.structs.FieldInfo, value: Any, where: str) -> Iterator[str]:
    """Yield the errors of a key's value."""
    nested, is_list = struct_of(field.type)
    if nested and is_list and isinstance(value, list):
        for number, item in enumerate(value):
            yield from errors_of(nested, item, f"{where}[{number}]")
    elif nested and not is_list:
        yield from errors_of(nested, value, where)
    elif error := validation_error(value, field.type):
        yield f"{where}: {error}"


def validation_error(value: Any, kind: Any) -> str | None:
    """Return the reason why a value is not of a kind; None if it is."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error).partition(" - at `$")[0]
        choices = ", ".join(repr(choice) for choice in get_args(kind)) if get_origin(kind) is Literal else ""
        return f"{text}: choose one of {choices}" if choices else text
    return None


def unknown_key(key: str, where: str, known: list[str]) -> str:
    """Return the error of an unknown key, with the nearest known one."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}?" if near else f"known keys here: {', '.join(sorted(known))}"
    return f"unknown key {where!r}: {advice}"


def struct_of(annotation: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    """Return a field's struct (None for plain values), and whether the field is a list."""
    is_list = get_origin(annotation) in (list, tuple)
    if is_list or get_origin(annotation) is UnionType:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation, is_list
    return None, is_list
