"""``dart-streams propose``: publish tasks for a run that takes proposals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from console.cli.options import RunConfig, RunId, State, run_config
from console.cli.output import log_to_stderr, print_line
from dart_streams.errors import UserError


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
    from console.datasets import proposals

    log_to_stderr()
    deployment = run_config(run, state, config)
    if not deployment.tasks.proposals:
        raise UserError(f"{deployment.bus.prefix}* takes no proposals: set tasks.proposals = true before its start")
    found = proposals.proposals_in(path, deployment.env.backend, seed_range(seeds), max_steps, maker)
    asyncio.run(proposals.publish(deployment.bus, found))
    print_line(f"{len(found)} tasks proposed to {deployment.bus.prefix}*; `dart-streams tasks --proposed` shows more")


def seed_range(text: str) -> range:
    """Return the seeds of a text such as ``0:8``; raise :class:`UserError` for any other text, or no seed."""
    first, colon, last = text.partition(":")
    if colon and first.isdecimal() and last.isdecimal() and int(first) < int(last):
        return range(int(first), int(last))
    raise UserError(f"--seeds {text}: give the first seed and the one after the last, such as 0:8")
