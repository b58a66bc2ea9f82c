"""``dart-streams bench``: the commands that measure training, from whole runs to a switch of weights."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.command_line import DEMO, show, show_lines
from dart_streams.console.cli import output
from dart_streams.console.cli.options import AsJson

app = typer.Typer()


@app.command()
def demonstration(
    runs: Annotated[int, typer.Option(help="Runs, one after another.", min=1)] = 5,
    episodes: Annotated[
        int | None,
        typer.Option(help="End training after N episodes. \\[default: run.minutes]", min=1, show_default=False),
    ] = None,
    config: Annotated[Path, typer.Option(help="The configuration.", exists=True)] = DEMO,
) -> None:
    """Gain of whole runs of a configuration: each, the median and the worst, with what else the machine did.

    A run of the demonstration takes about 13 minutes. Runs stay in their folders, with what they showed.
    """
    from benchmarks import modes
    from benchmarks.demonstration import measure

    show(measure(modes.load_config(config), runs, episodes, output.note))


@app.command()
def trainer(
    steps: Annotated[int, typer.Option(help="Batches to train on.", min=5)] = 500,
    groups: Annotated[int, typer.Option(help="Groups a batch.", min=1)] = 2,
    as_json: AsJson = False,
) -> None:
    """The trainer over a prepared backlog: its wait for data, and what its memory grows by a batch of screenshots.

    Starts a Kafka and a Cassandra, and ends them. Takes about 10 minutes.
    """
    from benchmarks import training

    with tempfile.TemporaryDirectory() as folder:
        found = training.measure(Path(folder), steps, groups)
    show(found) if as_json else show_lines(found)


@app.command()
def weights(
    workers: Annotated[int, typer.Option(help="Rollout workers.", min=1)] = 2,
    switches: Annotated[int, typer.Option(help="Versions to switch to.", min=1)] = 20,
    restarts: Annotated[int, typer.Option(help="Workers to end and start again.", min=1)] = 3,
    slots: Annotated[int, typer.Option(help="Requests under way at any time.", min=1)] = 16,
    window_s: Annotated[float, typer.Option(help="Seconds a version, and seconds between without one.")] = 3.0,
    kinds: Annotated[
        bool, typer.Option("--kinds", help="Instead: bytes a version, and seconds until it is served, by kind.")
    ] = False,
    size: Annotated[Literal["tiny", "larger"], typer.Option(help="The policy, with --kinds.")] = "tiny",
    versions: Annotated[int, typer.Option(help="Versions of each kind, with --kinds.", min=1)] = 10,
    learning_rate: Annotated[float, typer.Option(help="AdamW's, with --kinds.", min=0)] = 1e-6,
    as_json: AsJson = False,
) -> None:
    """A switch of weights in place against a restart of the engine, with real workers under steady load.

    With --kinds: what a version costs that is published whole, or as what changed since the one before, as JSON.
    Starts a Kafka, a Cassandra and the workers, and ends them. Takes about 5 minutes.
    """
    if kinds:
        from benchmarks import weight_kinds

        with tempfile.TemporaryDirectory() as folder:
            show(weight_kinds.measure(Path(folder), weight_kinds.KindsPlan(size, versions, learning_rate)))
        return
    from benchmarks import weights_switching

    plan = weights_switching.SwitchPlan(workers, switches, restarts, slots, window_s)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(weights_switching.measure(Path(folder), plan))
    show(found) if as_json else show_lines(found)
