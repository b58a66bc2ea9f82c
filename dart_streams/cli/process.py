"""``dart-streams worker`` and ``train``: become one process of the circle.

Here, and only here, the command reaches the processes: they are named, not imported, for dart_streams must not depend
on them.
"""

import importlib
import socket
import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from dart_streams.bus.topology import TopicSpec
from dart_streams.cli.options import AsJson, ConfigFile, read_config
from dart_streams.cli.output import show
from dart_streams.config import Config

Kind = Literal["env", "rollout", "recorder", "curator", "monitor"]


def worker(
    kind: Annotated[Kind, typer.Argument(help="What to be.")],
    config: ConfigFile = None,
    name: Annotated[
        str,
        typer.Option(
            "--id",
            help="This worker's name; {host} in it is this machine's. [default: KIND-0]",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Be one worker process until it is told to stop (SIGTERM or Ctrl-C drains it)."""
    become(f"workers.{kind}.main", read_config(config), worker_name(kind, name))


def train(
    config: ConfigFile = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="Make recorded steps of this bundle again.", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option(help="With --replay: how many.", min=1)] = 1,
    first: Annotated[
        int | None, typer.Option("--from", help="With --replay: the first train step.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Be the training process until it has done its steps or is told to stop.

    With --replay: make optimiser steps of a bundle again, without services, and compare their losses; exit code 1 if
    one differs by more than 1e-5.
    """
    if replay is None:
        become("trainer.main", read_config(config))
    result = importlib.import_module("dart_streams.history.retrain").run(replay, steps, first)
    show(result, as_json=as_json)
    if not all(step.equal for step in result):
        raise typer.Exit(1)


def worker_name(kind: Kind, name: str) -> str:
    """Return a worker's name: replicas of one container differ by their host only."""
    return name.replace("{host}", socket.gethostname()) or f"{kind}-0"


def become(module: str, config: Config, *arguments: str) -> NoReturn:
    """Call ``run(config, *arguments)`` of a process's wiring module and exit with what it returns."""
    sys.exit(importlib.import_module(module).run(config, *arguments))


def changelogs(config: Config) -> list[TopicSpec]:
    """Return the topics behind the curator's tables, which no topic of the contract stands for."""
    specs: list[TopicSpec] = importlib.import_module("workers.curator.changelogs").changelog_topics(config)
    return specs
