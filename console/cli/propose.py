"""``dart-streams propose``: publish tasks for a run that takes proposals.

They are read from HTML pages, or from JSON lines of ``topics.tasks.ProposedTask``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.options import RunConfig, RunId, State, run_config
from console.cli.output import log_to_stderr, print_line
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from dart_streams.config import Bus
    from topics.tasks import ProposedTask

PAGES, LINES = ".html", ".jsonl"


def propose_tasks(
    path: Annotated[Path, typer.Argument(help="An HTML page, a folder of pages, or JSON lines of the topic's events.")],
    seeds: Annotated[
        str, typer.Option("--seeds", help="Seeds of each page, from the first to before the last.")
    ] = "0:1",
    max_steps: Annotated[int, typer.Option("--max-steps", help="Step limit of the pages' tasks.", min=1)] = 10,
    maker: Annotated[str, typer.Option("--maker", help="Who made the pages.")] = "propose",
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
) -> None:
    """Propose tasks to a run, which checks each before it trains on it (`tasks.proposals`).

    `dart-streams tasks --proposed` shows what became of them. Refused ones are dead letters of the topic `tasks`.
    """
    log_to_stderr()
    deployment = run_config(run, state, config)
    if not deployment.tasks.proposals:
        raise UserError(f"{deployment.bus.prefix}* takes no proposals: set tasks.proposals = true before its start")
    found = proposals_in(path, deployment.env.backend, seed_range(seeds), max_steps, maker)
    asyncio.run(publish(deployment.bus, found))
    print_line(f"{len(found)} tasks proposed to {deployment.bus.prefix}*; `dart-streams tasks --proposed` shows more")


def seed_range(text: str) -> range:
    """Return the seeds of a text such as ``0:8``; raise :class:`UserError` for any other text, or no seed."""
    first, colon, last = text.partition(":")
    if colon and first.isdecimal() and last.isdecimal() and int(first) < int(last):
        return range(int(first), int(last))
    raise UserError(f"--seeds {text}: give the first seed and the one after the last, such as 0:8")


def proposals_in(path: Path, environment: str, seeds: Sequence[int], max_steps: int, maker: str) -> list[ProposedTask]:
    """Return the tasks of a file or folder: a page has one for each seed, and JSON lines say all themselves.

    Raises UserError, with file and line, if a file can't be read or has no task.
    """
    from dart_streams.config.tasks import task_id
    from dart_streams.config.text import text_of
    from topics.tasks import ProposedTask

    files = sorted(path.glob(f"*{PAGES}")) if path.is_dir() else [path]
    found: list[ProposedTask] = []
    try:
        for file in files:
            if file.suffix == PAGES:
                page = text_of(file.read_bytes(), str(file))
                names = [task_id(environment, file.stem, seed) for seed in seeds]
                found += [ProposedTask(task_id=name, max_steps=max_steps, maker=maker, document=page) for name in names]
            elif file.suffix == LINES:
                found += tasks_of_lines(file)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error}") from None
    if not found:
        raise UserError(f"{path} has no task: name a page (*{PAGES}), a folder of pages, or JSON lines (*{LINES})")
    return found


def tasks_of_lines(file: Path) -> Iterator[ProposedTask]:
    """Yield the tasks of JSON lines; raise UserError for a line that is none."""
    import msgspec

    from dart_streams.config.text import MALFORMED, lines_of, text_of
    from topics.tasks import ProposedTask

    for number, line in enumerate(lines_of(text_of(file.read_bytes(), str(file))), start=1):
        try:
            if line.strip():
                yield msgspec.json.decode(line, type=ProposedTask)
        except MALFORMED as error:
            raise UserError(f"{file}, line {number}: no proposed task: {error}") from None


async def publish(bus: Bus, proposed: Sequence[ProposedTask]) -> None:
    """Publish proposed tasks; raise ServiceUnavailable, or UserError for one that the topic does not take."""
    from dart_streams.bus.clients import Publisher
    from topics import tasks

    async with Publisher(bus, "propose") as publisher:
        for task in proposed:
            await publisher.publish(tasks.TOPIC, task, record_id=task.task_id)
