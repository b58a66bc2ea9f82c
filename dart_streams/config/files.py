"""Reading of configuration files: TOML into frozen structs, reporting every error of a file at once."""

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from dart_streams.config import hardware, recipes
from dart_streams.config.connections import anchor_paths
from dart_streams.config.deployment import Config
from dart_streams.config.recorded import upgrade_recorded
from dart_streams.config.tables import key_values, parse_settings, read_tables
from dart_streams.errors import ConfigError
from topics import rollout_orders

T = TypeVar("T", bound=msgspec.Struct)
MISSING = "no configuration file {}: name one, for instance deploy/config/demo.toml"

CREDENTIALS = re.compile(
    r"://[^/?#\s\[@]*:(?!\d+(?:[/?#,]|$))\S*@|https?://[^/?#\s]*@|://\S*[?&;#](?:[\w-]*(?:token|secret|passw(?:or)?d"
    r"|signature|credential|api[-_]?key|access[-_]?key(?:[-_]?id)?)|sig|auth|key)=",
    re.IGNORECASE,
)
"""A user's password or a token in an address, or a query that signs it."""
WITH_CREDENTIALS = (
    "the address has credentials, which a configuration publishes: leave them out. A key belongs into api_key, token "
    "or password, as env:NAME or file:PATH, that of a store or collector into its environment variables "
    "(AWS_SECRET_ACCESS_KEY, OTEL_EXPORTER_OTLP_HEADERS)"
)
SYNONYMS = {
    "lr": "trainer.learning_rate",
    "batch_size": "trainer.groups_per_step",
    "tensor_parallel_size": "rollout.vllm.tensor_parallel",
    "gpu_memory_utilization": "rollout.vllm.kv_cache_gib",
    "num_envs": "env.slots",
    "kl_coef": "trainer.kl_beta",
}
"""Keys by their names in other trainers."""


def load(path: Path, *, recorded: bool = False, recipe: Sequence[str] = (), settings: Sequence[str] = ()) -> Config:
    """Read a configuration file; ``recorded`` accepts the keys of earlier versions, as run folders have them.

    The keys of the recipes ``recipe`` win over the file's; those of recipes that the file names do not. ``settings``
    (``key=value``) win over both. Raises :class:`ConfigError` with every error if the file is missing, is no TOML, or
    has wrong keys or values.
    """
    data = read_tables(path, MISSING.format(path))
    data = merge_chosen(upgrade_recorded(data, str(path)) if recorded else data, recipe, settings)
    source = f"{path} with {' '.join(settings)}" if settings else str(path)
    config = parse(hardware.size_tables(data, hardware.read_machine()), source)
    return anchor_paths(config if recorded else anchor_model(with_partitions(config), path.parent), path.parent)


def set_keys(path: Path, recipe: Sequence[str] = (), settings: Sequence[str] = ()) -> frozenset[str]:
    """Return the keys that a file, its recipes and ``settings`` set, each with its whole place (``env.slots``)."""
    data = merge_chosen(read_tables(path, MISSING.format(path)), recipe, settings)
    return frozenset(key for key, _ in key_values(data))


def merge_chosen(tables: dict[str, Any], recipe: Sequence[str], settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return a file's tables with the keys of its recipes, or of ``recipe``, whose keys win, and of ``settings``."""
    chosen = recipes.override_tables(tables, {recipes.CHOICE: list(recipe)}) if recipe else tables
    return recipes.merge_recipes(recipes.override_tables(chosen, parse_settings(settings)) if settings else chosen)


def anchor_model(config: Config, folder: Path) -> Config:
    """Return a configuration whose ``policy.path`` is absolute if it names a directory in the file's ``folder``."""
    beside = folder / config.policy.path
    if not config.policy.path or not beside.is_dir():
        return config
    return msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy, path=str(beside.absolute())))


def with_partitions(config: Config) -> Config:
    """Return a deployment with ``bus.topics.partitions`` for all its workers, if the file does not say how many."""
    most = max(config.env.workers, config.rollout.workers)
    if config.bus.topics.partitions or most <= rollout_orders.TOPIC.partitions:
        return config
    settings = msgspec.structs.replace(config.bus.topics, partitions=most)
    return msgspec.structs.replace(config, bus=msgspec.structs.replace(config.bus, topics=settings))


def parse(data: dict[str, Any], source: str = "configuration") -> Config:
    """Turn tables into a :class:`Config`; raise :class:`ConfigError` with every wrong key."""
    data = recipes.merge_recipes(data)
    refuse(config_errors(data), source)
    return msgspec.convert({**data, recipes.SETTINGS: recipes.resolve_settings(data)}, Config)


def config_errors(data: dict[str, Any]) -> list[str]:
    """Return the errors of tables, of recipes' settings too. Where one has credentials, other texts might show them."""
    if published := list(credential_errors(data)):
        return published
    errors = [*errors_of(Config, data), *recipes.unnamed_settings(data)]
    for name in recipes.chosen_recipes(data):
        own = data.get(recipes.SETTINGS, {})
        table = own.get(name, {}) if isinstance(own, dict) else {}
        errors += errors_of(recipes.settings_type(name), table, f"{recipes.SETTINGS}.{name}")
    return errors


def credential_errors(data: dict[str, Any]) -> Iterator[str]:
    """Yield an error for each address with credentials, at any depth."""
    level: list[tuple[str, Any]] = list(data.items())
    while level:
        place, value = level.pop()
        if isinstance(value, dict):
            level += ((f"{place}.{key}", inner) for key, inner in value.items())
        elif isinstance(value, list | tuple):
            level += ((f"{place}[{number}]", inner) for number, inner in enumerate(value))
        elif isinstance(value, str) and CREDENTIALS.search(value):
            yield f"{place}: {WITH_CREDENTIALS}"


def parse_as(struct: type[T], data: Any, source: str) -> T:
    """Turn tables into ``struct``; raise :class:`ConfigError` with every wrong key."""
    refuse(list(errors_of(struct, data)), source)
    return msgspec.convert(data, struct)


def refuse(errors: list[str], source: str) -> None:
    """Raise :class:`ConfigError` with the errors of a file, if there are any."""
    if errors:
        text = f" {errors[0]}" if len(errors) == 1 else "".join(f"\n  {error}" for error in errors)
        raise ConfigError(f"{source}:{text}")


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
    if key in SYNONYMS:
        return f"unknown key {where!r}: its name here is {SYNONYMS[key]!r}"
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
