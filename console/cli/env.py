"""``dart-streams env``: try the tasks of a configuration in their environment, without Kafka, a policy or a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from console.cli.options import AsJson, ConfigFile, read_config, split_names
from console.cli.output import log_to_stderr, note, print_line, show_json
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from dart_streams.config.tasks import Task
    from workers.env.environment import EnvironmentBackend

app = typer.Typer(help="Try the tasks of a configuration in their environment.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Keep ``check`` a command of its group, though it is the only one."""


class PageCheck(msgspec.Struct, frozen=True):
    """The check of one page: its first task, and the rule that does not hold if there is one."""

    page: str
    task: str
    instruction: str
    oracle: bool
    seconds: float
    result: str
    without_effect: list[str] = []


@app.command()
def check(
    config: ConfigFile = None,
    page: Annotated[str, typer.Option("--page", help="Only these pages, separated by commas.")] = "",
    screens: Annotated[
        Path | None, typer.Option("--screens", help="Write each page's first screen into this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play the first training task of each page, and check the rules of environments.

    A task must start with reward 0, look the same after each reset, survive any action, and show an effect of one. The
    oracle, if there is one, must solve it. Kinds of actions without an effect are named. A backend's probe, if it has
    one, must receive what the contract of actions says. Exits with 1 if a rule does not hold.
    """
    from dart_streams.config import tasks as task_sets
    from workers.env.backends.registry import backend_of

    log_to_stderr()
    settings = read_config(config)
    tasks = first_tasks(task_sets.tasks_of(settings).train, split_names(page))
    if screens:
        screens.mkdir(parents=True, exist_ok=True)
    rows = asyncio.run(check_pages(backend_of(settings), tasks, screens))
    if as_json:
        show_json(rows)
    else:
        for row in rows:
            facts = [f"{row.seconds} s", f"{'an' if row.oracle else 'no'} oracle"]
            facts += [f"no effect of {', '.join(row.without_effect)}"] if row.without_effect else []
            print_line(f"{row.page}: {row.result} ({', '.join(facts)}): {row.instruction}")
    if failed := sum(row.result != "ok" for row in rows):
        note(f"{failed} of {len(rows)} pages break a rule of environments: docs/how-to/environment.md lists them")
        raise typer.Exit(1)


def first_tasks(tasks: Sequence[Task], pages: Sequence[str]) -> list[Task]:
    """Return the first task of each page, or of those that are named; raise :class:`UserError` for an unknown page."""
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(task.page, task)
    if unknown := [name for name in pages if name not in first]:
        raise UserError(f"no page {unknown[0]!r} has training tasks: there are {', '.join(first)}")
    return [task for name, task in first.items() if not pages or name in pages]


async def check_pages(backend: EnvironmentBackend, tasks: Sequence[Task], screens: Path | None) -> list[PageCheck]:
    """Start the backend, check one page after another, and stop it."""
    await backend.start()
    try:
        probe = getattr(backend, "probe", None)
        return [await check_page(backend, task, screens) for task in [*tasks, *([probe] if probe else [])]]
    finally:
        await backend.stop()


async def check_page(backend: EnvironmentBackend, task: Task, screens: Path | None) -> PageCheck:
    """Check one task; a rule that does not hold, or a fault of the environment, is the result."""
    from workers.env import conformance
    from workers.env.environment import EnvironmentFault

    started, instruction, oracle, result, without = time.monotonic(), "", False, "ok", list[str]()
    try:
        environment = await backend.open(task)
        screen = await environment.reset(task)
        instruction = screen.instruction
        if screens and screen.image:
            name = f"{task.page}-{task.seed}.{screen.media_type.rpartition('/')[2]}".replace("/", "-")
            (screens / name).write_bytes(screen.image)
        oracle = await conformance.solve(environment, task)
        await environment.close()
        without = await conformance.check(backend, task)
    except conformance.ContractViolation as violation:
        result = str(violation).removeprefix(f"{task.task_id}: ")
    except EnvironmentFault as fault:
        result = f"fault: {str(fault).splitlines()[0]}"
    seconds = round(time.monotonic() - started, 1)
    return PageCheck(task.page, task.task_id, instruction, oracle, seconds, result, without)
