"""Reading configuration files: TOML into frozen structs, with every error of a file at once.

Keys of earlier versions are known too: bundles and run folders hold a resolved configuration, with every key of the
version that wrote it.
"""

import copy
import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
import structlog

from dart_streams.config import hardware
from dart_streams.config.clip_bounds import without_foreign
from dart_streams.config.connections import anchor_paths
from dart_streams.config.deployment import Config
from dart_streams.config.text import text_of
from dart_streams.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

MAX_DEPTH = 32
"""Levels of tables and lists in a file: some times as many as any key has."""
TOO_DEEP = f"is nested too deeply: tables and lists may have {MAX_DEPTH} levels"

log = structlog.get_logger()

BACKENDS = ("env.miniwob", "env.simulated")

MOVED: dict[str, tuple[str, ...]] = {
    "env.isolation": ("env.miniwob.isolation",),
    "env.last_screen": tuple(f"{table}.last_screen" for table in BACKENDS),
    "env.call_timeout_s": tuple(f"{table}.call_timeout_s" for table in BACKENDS),
    "rollout.kv_cache_gib": ("rollout.vllm.kv_cache_gib",),
    "rollout.parity_nats": ("rollout.vllm.parity_nats",),
    "curation.reward.shortest_path": ("curation.mobilerl.shortest_path",),
    "curation.dispatch.rest_after": ("curation.mobilerl.rest_after",),
    "curation.dispatch.rest_passes": ("curation.mobilerl.rest_passes",),
    "curation.dispatch.phases": ("curation.craft_gui.phases",),
    "curation.credit.step_weight": ("curation.ui_s1.step_weight",),
    "curation.credit.discount": ("curation.ui_s1.discount",),
    "evaluation.temperature": ("evaluation.temperatures",),
    "trainer.entropy_beta": ("trainer.entropy_coef",),
    "trainer.dual_clip": ("trainer.dual_clip.factor",),
    "trainer.tis_cap": ("trainer.truncate.cap",),
    "trainer.mask_low": ("trainer.mask.low",),
    "trainer.mask_high": ("trainer.mask.high",),
    "trainer.tokens_per_step": ("trainer.c3po.tokens_per_step",),
    "trainer.pulse.every": ("trainer.entropulse.every",),
    "trainer.pulse.updates": ("trainer.entropulse.updates",),
    "trainer.pulse.trajectories": ("trainer.entropulse.trajectories",),
}
"""Old key to its new places."""

LISTS = frozenset({"evaluation.temperatures"})
"""Places that hold a list of what the old key held one of."""

FIXED: dict[str, float] = {
    "curation.difficulty.window": 16,
    "curation.length.margin": 0,
    "curation.dispatch.backlog": 2.0,
    "curation.dispatch.attempts": 3,
    "curation.dispatch.patience": 4,
    "curation.dispatch.probe_every": 32,
    "trainer.weight_decay": 0.0,
}
"""Old keys that decide what a run does, now constants: a recorded configuration must have the constant's value."""

DROPPED = frozenset(
    {
        "run.evaluate",
        "store.blob_cache_mb",
        "env.request_attempts",
        "env.loop_limit",
        "rollout.heartbeat_s",
        "rollout.liveness_s",
        "rollout.retry_s",
        "trainer.prefetch_mb",
        "trainer.mismatch_alarm",
        "trainer.pulse.kept",
        "trainer.entropulse.kept",
        "telemetry.metrics_every_s",
        "curation.entropy.enabled",
    }
)
"""Old keys of bounds and paces, now constants: what they were in an earlier run no longer matters."""


def load(path: Path, *, recorded: bool = False) -> Config:
    """Read and check a configuration file; ``recorded``: by an earlier version perhaps, so with all of its keys.

    A key that has moved is taken from its old place, with a warning. Raises :class:`ConfigError`, which names every
    error, if the file is missing, is no TOML, or has wrong keys or values.
    """
    data = read_tables(path, f"no configuration file {path}: name one, for instance deploy/config/demo.toml")
    data = hardware.size_tables(data, hardware.read_machine())
    config = parse(migrated(data, str(path)) if recorded else renamed(data, str(path)), source=str(path))
    replace, folder = msgspec.structs.replace, path.parent
    bus, store = config.bus, config.store
    machines = tuple(anchor_paths(machine, folder) for machine in config.env.osworld.machines)
    osworld = replace(anchor_paths(config.env.osworld, folder), machines=machines)
    return replace(
        config,
        bus=replace(bus, tls=anchor_paths(bus.tls, folder), login=anchor_paths(bus.login, folder)),
        store=replace(store, tls=anchor_paths(store.tls, folder), login=anchor_paths(store.login, folder)),
        env=replace(config.env, osworld=osworld, miniwob=anchor_paths(config.env.miniwob, folder)),
        desktops=anchor_paths(config.desktops, folder),
        rollout=replace(config.rollout, openai=anchor_paths(config.rollout.openai, folder)),
    )


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
    """Return how deeply tables and lists are nested, without recursion: a dotted key may have thousands of parts."""
    depth, level = 0, list[Any]([tables])
    while level:
        depth += 1
        inner = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        level = [value for value in inner if isinstance(value, dict | list)]
    return depth


def parse(data: dict[str, Any], source: str = "configuration") -> Config:
    """Turn nested tables into a :class:`Config`; raise :class:`ConfigError` that names every offending key."""
    return parse_as(Config, data, source)


def parse_as(struct: type[T], data: Any, source: str) -> T:
    """Turn nested tables into ``struct``; raise :class:`ConfigError` that names every offending key."""
    if errors := list(errors_of(struct, data)):
        text = f" {errors[0]}" if len(errors) == 1 else "".join(f"\n  {error}" for error in errors)
        raise ConfigError(f"{source}:{text}")
    return msgspec.convert(data, struct)


def errors_of(struct: type[msgspec.Struct], data: Any, place: str = "") -> Iterator[str]:
    """Yield what is wrong with a table: unknown keys, wrong values, and what does not go together."""
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
    """Yield what is wrong with the value of a key."""
    nested, is_list = struct_of(field.type)
    if nested and is_list and isinstance(value, list):
        for number, item in enumerate(value):
            yield from errors_of(nested, item, f"{where}[{number}]")
    elif nested and not is_list:
        yield from errors_of(nested, value, where)
    elif error := validation_error(value, field.type):
        yield f"{where}: {error}"


def validation_error(value: Any, kind: Any) -> str | None:
    """Return why a value is not of a kind; None if it is."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error).partition(" - at `$")[0]
        choices = ", ".join(repr(choice) for choice in get_args(kind)) if get_origin(kind) is Literal else ""
        return f"{text}: choose one of {choices}" if choices else text
    return None


def unknown_key(key: str, where: str, known: list[str]) -> str:
    """Return the error of a key that a table does not have, with what was probably meant."""
    if (became := hint(where)) is None:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        became = f"did you mean {near[0]!r}?" if near else f"known keys here: {', '.join(sorted(known))}"
    return f"unknown key {where!r}: {became}"


def struct_of(annotation: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    """Return the struct a field holds (None for plain values), and whether it holds a list of them."""
    is_list = get_origin(annotation) in (list, tuple)
    if is_list or get_origin(annotation) is UnionType:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation, is_list
    return None, is_list


def renamed(tables: dict[str, Any], source: str) -> dict[str, Any]:
    """Return a configuration with moved keys in their present places, and warn of each.

    One whose present place is set as well stays, and so is refused: nobody can say which of the two is meant.
    """
    there = dict(key_values(tables))
    result = copy.deepcopy(tables)
    for key in [key for key in there if key in MOVED]:
        if not there.keys() & {*MOVED[key]}:
            log.warning("a key has moved, write it anew", file=source, old=key, new=" and ".join(MOVED[key]))
            remove(result, key)
            put_moved(result, key, there[key])
    return result


def remove(tables: dict[str, Any], place: str) -> None:
    """Remove a key, and the tables that are empty without it."""
    section, _, key = place.partition(".")
    if key:
        remove(tables[section], key)
    if not key or not tables[section]:
        del tables[section]


def put_moved(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set the present places of a moved key, unless they are set."""
    for place in MOVED[key]:
        put(tables, place, [value] if place in LISTS else value)


def migrated(tables: dict[str, Any], source: str) -> dict[str, Any]:
    """Return a recorded configuration with the present keys; a key given under both names keeps its present one.

    Raises :class:`ConfigError` if a key that is now a constant had another value: the run could not be repeated.
    """
    result: dict[str, Any] = {}
    old: list[tuple[str, Any]] = []
    for key, value in key_values(tables):
        if key in FIXED and value != FIXED[key]:
            raise ConfigError(f"{source}: recorded with {key} = {value}, which this version fixes at {FIXED[key]}")
        if key in MOVED:
            old.append((key, value))
        elif key not in FIXED and key not in DROPPED:
            put(result, key, value)
    for key, value in old:
        put_moved(result, key, value)
    if not dict(key_values(tables)).get("run.evaluate", True):
        put(result, "evaluation.episodes", 0, over=True)
    if not dict(key_values(tables)).get("curation.entropy.enabled", True):
        put(result, "curation.entropy.keep", 1.0, over=True)
    if isinstance(result.get("trainer"), dict):
        result["trainer"] = without_foreign(result["trainer"])
        # Earlier versions had the mean over tokens for every objective.
        put(result, "trainer.aggregate", "tokens")
    return result


def key_values(tables: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys with their whole place; an empty table is none."""
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from key_values(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def put(tables: dict[str, Any], place: str, value: Any, *, over: bool = False) -> None:
    """Set a key, unless it is set and not to be written over."""
    *sections, key = place.split(".")
    for section in sections:
        tables = tables.setdefault(section, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{place}: {section} is a value, not a table")
    if over or key not in tables:
        tables[key] = value


def hint(key: str) -> str | None:
    """Return what became of a key of an earlier version; None if it never was one."""
    if key == "run.evaluate":
        return "set evaluation.episodes = 0 for no evaluation"
    if key == "curation.entropy.enabled":
        return "set curation.entropy.keep = 1.0 to train on all steps"
    if key in MOVED:
        return f"it is now {' and '.join(MOVED[key])}"
    return "it is now a constant" if key in FIXED or key in DROPPED else None
