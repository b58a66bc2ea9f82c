"""Writes the generated pages: docs/configuration.md, docs/cli.md, docs/metrics.md, and a table of docs/reliability.md.

``make reference`` runs it. In the configuration, core tables come first; then those of backends, plug-ins and secured
services.
"""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
import typer.main
from msgspec.structs import FieldInfo

from console.cli.main import COMMANDS, build_app
from dart_data.tracker.points import name_of
from dart_streams.config import recipes
from dart_streams.config.deployment import Config
from dart_streams.config.files import struct_of
from dart_streams.config.section import MOST, Section
from dart_streams.telemetry import names
from docs import fault_matrix
from topics import training_metrics

UNITS = {"_s": "seconds", "_ms": "milliseconds", "_mb": "MB", "_gib": "GiB", "_nats": "nats"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "multiple of"}

CONFIGURATION = """# Configuration

A deployment is one TOML file, which every process reads. Each key has a default, so a file has only the other values.
`dart-streams config show FILE` prints the resolved file (`--diff`: only differences from the defaults), and
`dart-streams config check FILE` every error in it.

No number is above 10⁹ (a seed has 64 bits), and tables and lists have at most 32 levels. A file whose records could be
too large for their topics is refused, with the keys to lower
([record sizes](concepts/topics.md#record-sizes)).

This page is generated from `dart_streams/config/`: `make reference` writes it.
"""
CORE = """
## Core
"""
PLUG_INS = """
## Backends, plug-ins and secured services

Tables of a single backend, of another paper's rule, or of services with TLS and logins. A deployment that uses none of
them has none of these tables.
"""

COMMAND_LINE = """# Commands

`dart-streams COMMAND --help` prints the same. A command that needs a deployment reads the file of `--config`, by
default `deploy/config/demo.toml`. A command that reads a run takes `--run`, by default the latest.

This page is generated from `console/cli/`: `make reference` writes it.
"""
METRICS = """# Metrics

## Of an optimizer step

The trainer publishes these metrics with each optimizer step, on the topic `trained`. The page of optimizer steps shows
them in the same groups. Metrics that do not apply to a step are left out, as are values that are not finite.
A share is between 0 and 1. An arrow shows the direction of improvement.

A [tracker](how-to/data.md#trackers) gives some of them the names of TRL, and `train_ms` in seconds.

This page is generated from `topics/training_metrics.py` and `dart_streams/telemetry/names.py`:
`make reference` writes it.
"""
INSTRUMENTS = """
## Of the processes

Every process exports these by OpenTelemetry, to the run's folder and to a
[collector](how-to/observe.md#send-to-a-collector). Prometheus has underscores in place of dots, and `_bucket`, `_sum`
and `_count` behind a histogram. Units are those of UCUM: `1` is a share, and `{slot}` a count of slots.
Each series also has the run (`dart_run_id`), the kind of process (`job`) and its id (`instance`).
"""
ARROWS = {"up": "↑", "down": "↓", "neither": ""}
DEFAULT = r" \[default: "
"""Start of a default in a help text; the bracket is escaped, since it would be markup."""


class Key(NamedTuple):
    """A key: its table's place and class, its field, and its default (``NODEFAULT``: it must be given)."""

    table: str
    section: type[Section]
    field: FieldInfo
    default: Any

    @property
    def place(self) -> str:
        """The key's whole place, for instance ``curation.budget.base``."""
        return f"{self.table}.{self.field.name}".lstrip(".")

    @property
    def is_core(self) -> bool:
        """Whether it is a key of the core."""
        return self.section.kind == "core"


def iterate_keys(section: type[Section] = Config, place: str = "", defaults: Any = None) -> Iterator[Key]:
    """Yield every key, a table's own before those of the tables in it; ``defaults`` is the table's default."""
    nested: list[tuple[type[Section], str, Any]] = []
    for field in msgspec.structs.fields(section):
        if section is Config and field.name == recipes.SETTINGS:
            nested += [(kind, f"{recipes.SETTINGS}.{name}", kind()) for name, kind in recipe_settings()]
            continue
        struct, is_list = struct_of(field.type)
        default = field.default if defaults is None else getattr(defaults, field.name)
        if struct is None or is_list:
            yield Key(place, section, field, default)
        if struct is not None and issubclass(struct, Section):
            nested.append((struct, f"{place}.{field.name}".lstrip("."), None if is_list else default))
    for struct, where, inner in nested:
        yield from iterate_keys(struct, where, inner)


def recipe_settings() -> list[tuple[str, type[Section]]]:
    """Return the recipes that have settings, with their types."""
    kinds = [(name, recipes.settings_type(name)) for name in recipes.known_recipes()]
    return [(name, kind) for name, kind in kinds if msgspec.structs.fields(kind)]


def field_docstrings(section: type[Section]) -> dict[str, str]:
    """Return the string under each field of a table, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if not issubclass(base, Section):
            continue
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def type_of(annotation: Any) -> tuple[str, str]:
    """Return a field's type and its bounds, as text."""
    if get_origin(annotation) is Annotated:
        kind, *metas = get_args(annotation)
        bounds = [
            f"{sign} {getattr(meta, name):g}"
            for meta in metas
            for name, sign in BOUNDS.items()
            if getattr(meta, name) is not None and abs(getattr(meta, name)) < MOST
        ]
        return type_of(kind)[0], ", ".join(bounds)
    if get_origin(annotation) is Literal:
        return " or ".join(f'`"{choice}"`' for choice in get_args(annotation)), ""
    if get_origin(annotation) is tuple:
        return f"list of {'tables' if struct_of(annotation)[0] else type_of(get_args(annotation)[0])[0]}", ""
    if get_origin(annotation) is dict:
        return "table", ""
    if type(None) in get_args(annotation):
        return type_of(get_args(annotation)[0])
    if len(either := get_args(annotation)) > 1:
        kinds = [type_of(kind) for kind in either]
        return " or ".join(kind for kind, _ in kinds), ", ".join(bounds for _, bounds in kinds if bounds)
    return {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}[annotation.__name__], ""


def default_of(key: Key) -> str:
    """Return a key's default as TOML; a dash for none."""
    if key.default is msgspec.NODEFAULT:
        return "required"
    return "–" if key.default is None else f"`{format_toml(key.default)}`"


def format_toml(value: Any) -> str:
    """Return a plain value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_toml, value))}]"
    return f"{value:_}" if isinstance(value, int) and value >= 100_000 else f"{value}"


def unit_of(name: str) -> str:
    """Return the unit that a key's name ends in, empty if it has none."""
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")


def format_tables(*, core: bool) -> Iterator[str]:
    """Yield the text of each table; one like an earlier one has only its name and what differs."""
    by_table: dict[str, list[Key]] = {}
    for key in iterate_keys():
        if key.is_core == core:
            by_table.setdefault(key.table, []).append(key)
    seen: dict[type[Section], list[Key]] = {}
    for place, own in by_table.items():
        section = own[0].section
        yield f"\n### [{place}]\n\n" if place else "\n### Top level\n\n"
        if first := seen.get(section):
            other = [
                f"`{a.field.name} = {format_toml(a.default)}`" for a, b in zip(own, first, strict=True) if a[3] != b[3]
            ]
            yield f"As [{first[0].table}]{', with ' + ', '.join(other) if other else ''}.\n"
            continue
        seen[section] = own
        yield f"{' '.join((inspect.getdoc(section) or '').split())}\n\n".replace("``", "`")
        yield "| key | type | default | bounds | unit | description |\n|---|---|---|---|---|---|\n"
        yield from format_rows(own)


def format_rows(own: list[Key]) -> Iterator[str]:
    """Yield a line for each key of a table."""
    texts = field_docstrings(own[0].section)
    for key in own:
        name = key.field.name
        kind, bounds = type_of(key.field.type)
        cells = (f"`{name}`", kind, default_of(key), bounds, unit_of(name), texts[name].replace("``", "`"))
        yield f"| {' | '.join(cells)} |\n"


def configuration_page() -> str:
    """Return the page of all keys."""
    return "".join([CONFIGURATION, CORE, *format_tables(core=True), PLUG_INS, *format_tables(core=False)])


def commands_page() -> str:
    """Return the page of all commands."""
    application: Any = typer.main.get_command(build_app([command.name for command in COMMANDS]))
    return COMMAND_LINE + "".join(
        text for name, own in application.commands.items() for text in format_command(name, own, 2)
    )


def format_command(name: str, command: Any, level: int) -> Iterator[str]:
    """Yield a command's heading, help, usage and parameters, and those of its own commands."""
    yield f"\n{'#' * level} {name}\n\n{' '.join((command.help or '').split())}\n"
    if hasattr(command, "commands"):
        for inner, own in command.commands.items():
            yield from format_command(f"{name} {inner}", own, level + 1)
        return
    parameters = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [format_usage(one) for one in parameters if one.param_type_name == "argument"]
    options = ["[OPTIONS]"] if len(arguments) < len(parameters) else []
    yield f"\n```\n{' '.join(['dart-streams', name, *options, *arguments])}\n```\n"
    if parameters:
        yield "\n| option | description | default |\n|---|---|---|\n"
        yield from map(format_parameter, parameters)


def format_usage(argument: Any) -> str:
    """Return an argument as a usage line has it."""
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def format_parameter(parameter: Any) -> str:
    """Return a line of the table of parameters."""
    is_option = parameter.param_type_name == "option"
    name = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else format_usage(parameter).strip("[]")
    text, _, default = (parameter.help or "").partition(DEFAULT)
    if not default and parameter.default not in (None, "", False):
        default = str(parameter.default)
    return f"| `{name}` | {text} | {default.removesuffix(']')} |\n".replace(
        f"`{name}`", f"`{name}`".replace("|", "\\|")
    )


HEADINGS = {
    "env": "Environment workers",
    "rollout": "Rollout workers",
    "recorder": "Recorder",
    "curator": "Curator",
    "trainer": "Trainer",
    "monitor": "Monitor",
    "": "Every process",
}
"""Heading of the instruments whose names begin so."""


def metrics_page() -> str:
    """Return the page of all metrics of an optimizer step, a table a group."""
    parts = [METRICS]
    for group, members in itertools.groupby(training_metrics.ALL, lambda one: one.group):
        parts.append(f"\n### {group[0].upper()}{group[1:]}\n\n| metric | unit | better | meaning | in a tracker |\n")
        parts.append("|---|---|---|---|---|\n")
        for one in members:
            cells = (f"`{one.name}`", one.unit, ARROWS[one.better], one.meaning, f"`{name_of(one.name)}`")
            parts.append(f"| {' | '.join(cells)} |\n")
    return "".join([*parts, INSTRUMENTS, *(instruments_section(prefix) for prefix in HEADINGS)])


def instruments_section(prefix: str) -> str:
    """Return the table of a kind of process's instruments, under its heading."""
    lines = [
        f"\n### {HEADINGS[prefix]}\n\n| instrument | kind | unit | attributes | meaning |\n|---|---|---|---|---|\n"
    ]
    for name, one in names.BY_NAME.items():
        own = name.partition(".")[0]
        if (own if own in HEADINGS else "") == prefix:
            attributes = ", ".join(f"`{name}`" for name in one.attributes)
            lines.append(f"| `{name}` | {one.kind} | `{one.unit}` | {attributes} | {one.meaning} |\n")
    return "".join(lines)


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "configuration.md").write_text(configuration_page(), encoding="utf-8")
    (folder / "cli.md").write_text(commands_page(), encoding="utf-8")
    (folder / "metrics.md").write_text(metrics_page(), encoding="utf-8")
    fault_matrix.write_page()
