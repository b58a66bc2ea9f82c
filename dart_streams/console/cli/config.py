"""``dart-streams config``: a configuration file resolved, or checked."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomli_w
import typer

from dart_streams.config import Config, Tasks, load
from dart_streams.config import tasks as task_sets
from dart_streams.config.backends import BUILT_IN, find_backend
from dart_streams.config.files import errors_of, read_tables, renamed
from dart_streams.console.cli.options import DEFAULT_CONFIG, AsJson, read_config
from dart_streams.console.cli.output import note, print_line, show_json
from dart_streams.console.runs.run_folder import without_nulls
from dart_streams.episodes import context
from dart_streams.errors import ConfigError, UserError

app = typer.Typer(no_args_is_help=True)


@app.command("show")
def show_config(
    file: Annotated[Path, typer.Argument(help="Configuration file.")] = DEFAULT_CONFIG,
    diff: Annotated[bool, typer.Option("--diff", help="Only what differs from the defaults.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a file with every default filled in, as TOML."""
    tables = without_nulls(msgspec.to_builtins(load(file)))
    if diff:
        tables = changed_keys(tables, msgspec.to_builtins(Config()))
    show_json(tables) if as_json else print_line(tomli_w.dumps(tables).rstrip("\n"))


@app.command("check")
def check(
    files: Annotated[list[Path] | None, typer.Argument(help="Configuration files.", show_default=False)] = None,
) -> None:
    """Report every error of configuration files and of the task files they name; exit code 2 if there is one."""
    found = {file: errors_in(file) for file in files or [DEFAULT_CONFIG]}
    for file, errors in found.items():
        for error in errors:
            print_line(error if str(file) in error else f"{file}: {error}")
        if not errors:
            note(f"{file}: ok")
    if number := sum(map(len, found.values())):
        raise UserError(f"{number} errors" if number > 1 else "1 error")


def errors_in(file: Path) -> list[str]:
    """Return what is wrong with a configuration file and its task file, or with a task file alone."""
    try:
        tables = read_tables(file, f"no configuration file {file}")
    except ConfigError as error:
        return [str(error)]
    if "pages" in tables:
        return task_errors(file)
    known = renamed(tables, str(file))
    errors = list(errors_of(Config, known))
    config = None if errors else msgspec.convert(known, Config)
    if config is not None:
        errors = backend_errors(config) + model_errors(file)
    section = tables.get("tasks", {})
    name = section.get("file", Tasks().file) if isinstance(section, dict) else Tasks().file
    return errors + task_errors(file.parent / str(name), config)


def backend_errors(config: Config) -> list[str]:
    """Return what is wrong with the backend that a configuration names: neither ours nor an installed package's."""
    if config.env.backend in BUILT_IN:
        return []
    try:
        find_backend(config.env.backend)
    except ConfigError as error:
        return [str(error)]
    return []


def model_errors(file: Path) -> list[str]:
    """Return what is wrong with the model that a configuration names, or with its prompts for that model."""
    config = read_config(file)
    if not config.policy.path:
        return []
    folder = Path(config.policy.path)
    if not folder.is_dir():
        return [f"policy.path: no model directory {folder.absolute()}"]
    reason = context.context_refusal(folder, config, context.most_steps(config))
    return [f"policy: {reason}"] if reason else []


def task_errors(file: Path, config: Config | None = None) -> list[str]:
    """Return what is wrong with a task file, for a configuration if one is given."""
    try:
        task_sets.load(file) if config is None else task_sets.tasks_of(config, file)
    except ConfigError as error:
        return [str(error)]
    return []


def changed_keys(tables: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the keys whose values are not the defaults, in their tables."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            if inner := changed_keys(value, default):
                found[key] = inner
        elif value != default:
            found[key] = value
    return found
