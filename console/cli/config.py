"""``dart-streams config``: print a resolved configuration, compare it with its papers, or check files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.options import DEFAULT_CONFIG, AsJson, Recipes, Settings
from console.cli.output import note, print_line, show, show_json
from dart_streams.errors import ConfigError, UserError

if TYPE_CHECKING:
    from dart_streams.config import Config

app = typer.Typer(no_args_is_help=True)


@app.command("show")
def show_config(
    file: Annotated[Path, typer.Argument(help="Configuration file.")] = DEFAULT_CONFIG,
    recipe: Recipes = None,
    settings: Settings = None,
    diff: Annotated[bool, typer.Option("--diff", help="Only what differs from the defaults.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a file with every default filled in, as TOML."""
    import msgspec
    import tomli_w

    from console.runs.run_folder import without_nulls
    from dart_streams.config import Config, load
    from dart_streams.config.tables import drop_defaults

    tables = without_nulls(msgspec.to_builtins(load(file, recipe=recipe or (), settings=settings or ())))
    if diff:
        tables = drop_defaults(tables, msgspec.to_builtins(Config()))
    show_json(tables) if as_json else print_line(tomli_w.dumps(tables).rstrip("\n"))


@app.command("differences")
def show_differences(
    file: Annotated[Path, typer.Argument(help="Configuration file.")] = DEFAULT_CONFIG,
    recipe: Recipes = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Compare a run's settings with those of its recipes' papers and of the authors' releases.

    Without a recipe the comparison is with dart. A star marks what differs from the paper.
    """
    from dart_streams.config import differences, load

    config = load(file, recipe=recipe or (), settings=settings or ())
    rows = differences.compare_settings(config)
    if as_json:
        show_json(rows)
        return
    for name in dict.fromkeys(row.recipe for row in rows):
        paper = differences.read_paper(name)
        sources = [f"paper: {paper.source or 'none'}", *([f"release: {paper.release_source}"] * bool(paper.release))]
        note("\n".join(sources))
        own = [row for row in rows if row.recipe == name]
        show([differences.table_row(row) for row in own], as_json=False, title=f"recipe {name}")
        for row in own:
            if row.differs and row.why:
                note(f"{row.key}: {row.why}")
    note(differences.describe_differences(config))


@app.command("check")
def check(files: Annotated[list[Path] | None, typer.Argument(help="Configuration files.")] = None) -> None:
    """Report every error of configuration files and of the task files they name; exit code 2 if there is one."""
    checked = {file: errors_in(file) for file in files or [DEFAULT_CONFIG]}
    for file, errors in checked.items():
        for error in errors:
            print_line(error if str(file) in error else f"{file}: {error}")
        if not errors:
            note(f"{file}: ok")
    if count := sum(map(len, checked.values())):
        raise UserError(f"{count} errors" if count > 1 else "1 error")


def errors_in(file: Path) -> list[str]:
    """Return the errors of a configuration file and its task file, or of a task file alone."""
    import msgspec

    from dart_streams.config import Config, Tasks, tasks
    from dart_streams.config.backends import BUILT_IN, find_backend
    from dart_streams.config.connections import anchor_paths
    from dart_streams.config.files import anchor_model, config_errors
    from dart_streams.config.recipes import merge_recipes
    from dart_streams.config.tables import read_tables
    from dart_streams.curation.recipes import bind_rules

    try:
        tables = read_tables(file, f"no configuration file {file}")
    except ConfigError as error:
        return [str(error)]
    if tables.keys() & {"pages", "osworld"}:
        return error_of(tasks.load, file)
    try:
        tables = merge_recipes(tables)
        errors = config_errors(tables)
    except ConfigError as error:
        return [str(error)]
    config = None if errors else anchor_model(msgspec.convert(tables, Config), file.parent)
    section = tables.get("tasks", {})
    name = section.get("file", Tasks().file) if isinstance(section, dict) else Tasks().file
    task_file = file.parent / str(name)
    if config is None:
        return errors + error_of(tasks.load, task_file)
    errors += error_of(bind_rules, anchor_paths(config, file.parent))
    if config.env.backend not in BUILT_IN:
        errors += error_of(find_backend, config.env.backend)
    errors += model_errors(config, task_file) + error_of(tasks.tasks_of, config, task_file)
    return errors or page_errors(config, task_file, file.parent)


def error_of(check: Callable[..., object], *arguments: object) -> list[str]:
    """Return the error that a check raises, if any."""
    try:
        check(*arguments)
    except ConfigError as error:
        return [str(error)]
    return []


def model_errors(config: Config, task_file: Path) -> list[str]:
    """Return the error of the model directory, or of prompts that exceed the model's context."""
    from msgspec.structs import replace

    from dart_streams.episodes import context
    from dart_streams.policy import recipe
    from dart_streams.policy.hub_models import find_snapshot, hub_model

    if not config.policy.path:
        return []
    if (model := hub_model(config.policy.path)) and find_snapshot(model) is None:
        return []  # A run fetches it, and then checks it.
    try:
        folder = recipe.named_policy(config)
    except ConfigError as error:
        return [str(error)]
    located = replace(config, tasks=replace(config.tasks, file=str(task_file)))
    reason = context.context_refusal(folder, located, context.most_steps(located))
    return [f"policy: {reason}"] if reason else []


def page_errors(config: Config, task_file: Path, folder: Path) -> list[str]:
    """Return the pages of a task file that are neither the user's nor of MiniWoB++, if pages are played at all."""
    from dart_streams.config import tasks
    from dart_streams.config.connections import anchor_paths
    from workers.env.backends.miniwob.page import page_url
    from workers.env.environment import EnvironmentFault

    if config.env.backend != "miniwob":
        return []
    settings, errors = anchor_paths(config.env.miniwob, folder), []
    for name in dict.fromkeys(page.page for page in tasks.load(task_file).pages):
        if settings.own_page(name):
            continue
        try:
            page_url(name, settings.pages_folder)
        except EnvironmentFault as fault:
            errors.append(f"{task_file}: {fault}")
    return errors
