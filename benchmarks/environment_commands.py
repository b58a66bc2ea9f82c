"""``dart-streams bench``: the commands that measure environments, without broker, policy and store."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command_line import DEMO, DeploymentFile, show
from dart_streams.console.cli import output

app = typer.Typer()


@app.command()
def browser(
    rounds: Annotated[int, typer.Option(help="Turns of each way of taking screens.", min=1)] = 4,
    episodes: Annotated[int, typer.Option(help="Episodes a turn.", min=8)] = 160,
    warm_up: Annotated[int, typer.Option(help="Episodes of each before the first turn.", min=8)] = 400,
    config: DeploymentFile = DEMO,
) -> None:
    """CPU time of Chromium a step, with a frame for each screen and with screenshots, in turns; and whether they agree.

    Without broker, policy and store. Takes about two minutes.
    """
    from benchmarks import browser_cost, modes
    from dart_streams.config.tasks import load

    output.log_to_stderr()
    base = modes.load_config(config)
    tasks = load(Path(base.tasks.file))
    show(asyncio.run(browser_cost.measure(tasks, base, rounds, episodes, warm_up)))


@app.command()
def desktops(
    slots: Annotated[int, typer.Option(help="Desktops side by side.", min=1)] = 8,
    episodes: Annotated[int, typer.Option(help="Episodes of each.", min=1)] = 6,
    family: Annotated[
        list[str] | None,
        typer.Option(
            help="A family of tasks; may be given again. \\[default: those of LibreOffice]", show_default=False
        ),
    ] = None,
    hogged: Annotated[int, typer.Option(help="Processors that other work keeps busy.", min=0)] = 0,
    starts: Annotated[
        bool, typer.Option("--starts", help="Only resets, to one task a family, whose first screens are compared.")
    ] = False,
    handovers: Annotated[int, typer.Option(help="Only hand over a prepared desktop, N times.", min=0)] = 0,
    config: DeploymentFile = Path("deploy/config/desktop.toml"),
) -> None:
    """Time, CPU time and memory of desktops side by side, by family: resets, steps of the oracle, clicks, idling.

    Without broker, policy and store. Needs `make desktop`. Takes one to five minutes.
    """
    from benchmarks import desktop_cost, modes

    output.log_to_stderr()
    base = modes.load_config(config)
    families = [desktop_cost.tasks_of(name) for name in family or ("sheet", "document", "slide")]
    if handovers:
        show({tasks[0].page: asyncio.run(desktop_cost.hand_overs(base, tasks[0], handovers)) for tasks in families})
    else:
        show(asyncio.run(desktop_cost.measure(families, base, slots, episodes, hogged=hogged, same=starts)))
