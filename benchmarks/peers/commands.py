"""``dart-streams bench``: the commands that compare with peers."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command_line import DEMO, DeploymentFile, show
from dart_streams.console.cli import output

app = typer.Typer()


@app.command()
def browsergym(
    rounds: Annotated[int, typer.Option(help="Turns of each environment.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Seconds a turn.", min=1)] = 12.0,
    processes: Annotated[
        list[int] | None,
        typer.Option(help="Processes of a peer; may be given again. \\[default: 1, 4]", show_default=False),
    ] = None,
    config: DeploymentFile = DEMO,
) -> None:
    """Steps a second and CPU time a step of this project's browser, BrowserGym's and plain Playwright's, in turns.

    All play the same recorded episodes of the same pages. Needs `make peers`. Takes about 8 minutes.
    """
    from benchmarks import modes
    from benchmarks.peers import browsers
    from dart_streams.config.tasks import load

    output.log_to_stderr()
    base = modes.load_config(config)
    show(asyncio.run(browsers.measure(base, load(Path(base.tasks.file)), rounds, seconds, processes or [1, 4])))


@app.command()
def trl(
    minutes: Annotated[float, typer.Option(help="Minutes of training, each.", min=0.1)] = 4.0,
    runs: Annotated[int, typer.Option(help="Runs of each, in turns.", min=1)] = 1,
    side: Annotated[
        str | None, typer.Option(help="Only trl, or only circle. \\[default: both]", show_default=False)
    ] = None,
    config: DeploymentFile = DEMO,
) -> None:
    """Held-out success of the circle and of TRL's GRPO trainer, from the same policy on the same pages of one action.

    Needs `make peers`, and the tiny policy that `make demo` builds. Takes about 12 minutes a run of both.
    """
    from benchmarks import modes
    from benchmarks.peers import trainers

    output.log_to_stderr()
    base = modes.load_config(config)
    show(trainers.measure(base, minutes, runs, [side] if side else trainers.SIDES, output.note))
