"""``dart-streams bench``: comparisons with peers."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command_line import DEMO, DeploymentFile, show
from console.cli import output
from console.cli.options import AsJson

app = typer.Typer()


@app.command()
def browsergym(
    rounds: Annotated[int, typer.Option(help="Rounds of each environment.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Seconds per round.", min=1)] = 12.0,
    processes: Annotated[
        list[int] | None,
        typer.Option(help="Processes of a peer; may be repeated. \\[default: 1, 4]", show_default=False),
    ] = None,
    config: DeploymentFile = DEMO,
    as_json: AsJson = False,
) -> None:
    """Steps per second and CPU time per step of this project's browser, BrowserGym and plain Playwright.

    All play the same recorded episodes in turns. Needs `make peers`. Takes about 8 minutes.
    """
    from benchmarks import modes
    from benchmarks.peers import browsers
    from dart_streams.config.tasks import load

    output.log_to_stderr()
    base = modes.load_config(config)
    show(
        asyncio.run(browsers.measure(base, load(Path(base.tasks.file)), rounds, seconds, processes or [1, 4])), as_json
    )


@app.command()
def trl(
    minutes: Annotated[float, typer.Option(help="Minutes of training per run.", min=0.1)] = 4.0,
    runs: Annotated[int, typer.Option(help="Runs of each side, in turns.", min=1)] = 1,
    side: Annotated[
        str | None, typer.Option(help="Side to run: trl or circle. \\[default: both]", show_default=False)
    ] = None,
    config: DeploymentFile = DEMO,
    as_json: AsJson = False,
) -> None:
    """Held-out success of this project and of TRL's GRPO trainer, from the same policy on the same single-action pages.

    Needs `make peers` and the tiny policy that `make demo` builds. Takes about 12 minutes for both.
    """
    from benchmarks import modes
    from benchmarks.peers import trainers

    output.log_to_stderr()
    base = modes.load_config(config)
    show(trainers.measure(base, minutes, runs, [side] if side else trainers.SIDES, output.note), as_json)
