"""``dart-streams worker`` and ``train``: run one process, imported by name as each has libraries of its environment."""

from __future__ import annotations

import importlib
import socket
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from console.cli.main import load_verb
from console.cli.options import AsJson, ConfigFile, read_config
from console.cli.output import show
from dart_streams.errors import UserError

Kind = Literal["env", "rollout", "recorder", "curator", "monitor", "tracker", "desktops"]
MODULES = {"monitor": "console.monitor.main", "tracker": "", "desktops": ""}  # Entry points name plug-ins.


def run_worker(
    kind: Annotated[Kind, typer.Argument(help="The kind of worker.")],
    config: ConfigFile = None,
    name: Annotated[
        str, typer.Option("--id", help="This worker's name; {host} in it is this machine's. \\[default: KIND-0]")
    ] = "",
) -> None:
    """Run one worker process until SIGTERM or Ctrl-C drains it."""
    from workers.runtime import lifecycle

    module = MODULES.get(kind, f"workers.{kind}.main")
    main = importlib.import_module(module) if module else load_verb(f"worker.{kind}")
    process = read_config(config), worker_name(kind, name)
    sys.exit(main.run(*process) if kind == "rollout" else lifecycle.run(main.connect, *process))


def train(
    config: ConfigFile = None,
    replay: Annotated[Path | None, typer.Option("--replay", help="Repeat recorded steps of this bundle.")] = None,
    steps: Annotated[int, typer.Option(help="With --replay: the number of steps.", min=1)] = 1,
    first: Annotated[int | None, typer.Option("--from", help="With --replay: the first train step.")] = None,
    weights: Annotated[
        str, typer.Option(help="With --replay: the folder or URL of its weights. \\[default: the run's in .dart]")
    ] = "",
    sft: Annotated[
        Path | None,
        typer.Option("--sft", help="Fine-tune the model on these demonstrations, without services.", metavar="DATA"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With --sft: the model directory to make.", metavar="DIR")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="With --sft: stop at any unusable trajectory.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the training process until it has made its steps, or SIGTERM or Ctrl-C ends it.

    With trainer.nodes above 1: run it on each node with the same file, from a file system that all share. Start it
    again where it was killed.

    With --replay: repeat optimizer steps of a bundle, without services, and compare their losses; exit code 1 if one
    differs by more than 1e-5.

    With --sft: supervised fine-tuning by the keys of trainer.sft. DATA are JSON lines, a Parquet set, or a bundle,
    whose successes are taken. DIR is for policy.path or `dart-streams run --init`. The same command continues after a
    kill.
    """
    if sft is not None:
        if replay is not None or output is None:
            raise UserError("--sft makes a model directory: name it by --output, and leave --replay out")
        load_verb("train.sft").fine_tune(config, sft, output, strict, as_json)
        return
    if output is not None or strict:
        raise UserError("--output and --strict go with --sft")
    if replay is None:
        sys.exit(importlib.import_module("trainer.main").run(read_config(config)))
    result = importlib.import_module("console.bundles.retrain").run(replay, steps, first, weights)
    show(result, as_json=as_json)
    if not all(step.equal for step in result):
        raise typer.Exit(1)


def worker_name(kind: Kind, name: str) -> str:
    """Return a worker's name, with ``{host}`` filled in: replicas of one container differ by their host alone."""
    return name.replace("{host}", socket.gethostname()) or f"{kind}-0"
