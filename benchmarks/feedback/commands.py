"""``dart-streams bench feedback``."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command_line import DeploymentFile, show
from console.cli import output
from console.cli.options import AsJson, State

app = typer.Typer()
DEPLOYMENT = Path("benchmarks/feedback/feedback.toml")


@app.command()
def feedback(
    corrections: Annotated[int, typer.Option(help="Corrections that the person gives; 0: the control.", min=0)] = 20,
    every_s: Annotated[float, typer.Option("--every", help="Seconds between two corrections.", min=0)] = 12.0,
    minutes: Annotated[float, typer.Option(help="Minutes of training.", min=0.1)] = 10.0,
    config: DeploymentFile = DEPLOYMENT,
    state: State = Path(".dart"),
    as_json: AsJson = False,
) -> None:
    """Seconds from a correction to the version that learned from it, and what corrections do for a hard page.

    A page's oracle is the person; the run is real. Starts and ends a Kafka and a Cassandra. Takes a quarter of an hour.
    """
    from benchmarks import decoupling_run, modes
    from benchmarks.feedback import run

    output.log_to_stderr()
    base = run.shorten(modes.load_config(config), minutes, state)
    with decoupling_run.with_services(base) as running:
        show(run.play(running, corrections, every_s), as_json)
