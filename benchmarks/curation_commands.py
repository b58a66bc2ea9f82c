"""``dart-streams bench``: the commands that measure the data manager, and one that makes a bundle for ``replay``."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command_line import show

app = typer.Typer()

Trajectories = Annotated[int, typer.Option(help="Finished rollouts to work on.", min=1)]


@app.command()
def reducers(
    trajectories: Trajectories = 50_000,
    tasks: Annotated[int, typer.Option(help="Tasks in the set.", min=1)] = 1_000,
    slots: Annotated[int, typer.Option(help="Slots that the backlog is for.", min=1)] = 64,
) -> None:
    """Events a second of CPU time through each reducer of the data manager, and the size of its state."""
    from benchmarks import curation_reducers

    show(curation_reducers.measure(trajectories, tasks, slots))


@app.command()
def agents(
    trajectories: Trajectories = 10_000,
    servers: Annotated[str, typer.Option(help="The broker; its topics are made and left there.")] = "127.0.0.1:9092",
    core: Annotated[int | None, typer.Option(help="The core to keep the curator on.", show_default=False)] = None,
) -> None:
    """Finished rollouts a second through all four agents of a curator process, over Kafka."""
    from benchmarks import curation_agents

    with tempfile.TemporaryDirectory() as folder:
        show(asyncio.run(curation_agents.measure(Path(folder), servers, trajectories, core)))


@app.command()
def bundle(
    output: Annotated[Path, typer.Argument(help="The bundle to write.")],
    trajectories: Trajectories = 100_000,
    tasks: Annotated[int, typer.Option(help="Tasks in the set.", min=1)] = 1_000,
    slots: Annotated[int, typer.Option(help="Slots that the backlog is for.", min=1)] = 64,
) -> None:
    """Write a bundle of N made-up rollouts, for `replay`."""
    from benchmarks.bundle import make

    show(make(output, trajectories, tasks, slots))
