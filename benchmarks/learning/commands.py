"""``dart-streams bench learning``: the command alone, without torch."""

from pathlib import Path
from typing import Annotated

import typer

from dart_streams.console.cli import output
from dart_streams.console.cli.options import AsJson

app = typer.Typer()


@app.command()
def learning(
    seeds: Annotated[int, typer.Option(help="Runs of each variant.", min=1, max=16)] = 3,
    episodes: Annotated[int, typer.Option(help="Training episodes of a run.", min=16)] = 3200,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A variant beside the base; may be given again. \\[default: all]", show_default=False),
    ] = None,
    variants: Annotated[Path, typer.Option(help="The deployment and its variants.", exists=True)] = Path(
        "benchmarks/learning/variants.toml"
    ),
    folder: Annotated[Path, typer.Option(help="Where screens, policies and runs are kept.")] = Path(".dart/bench"),
    plot: Annotated[
        Path | None, typer.Option(help="Where to draw the learning curves (svg).", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Gain on held-out tasks for each variant of the demonstration, over the same seeds, with 95 % intervals.

    One process and one thread, on recorded screens, without services: a run of 3200 episodes takes about a minute of a
    core. The screens are recorded first if they are not there. Runs that this code made before are not made again.
    """
    from benchmarks.learning import comparison, report

    output.log_to_stderr()
    runs = comparison.play_plan(
        comparison.Plan(variants, folder, list(range(seeds)), episodes, only or []), output.note
    )
    compared = report.compare_variants(runs)
    if plot is not None:
        report.draw(runs, plot)
    if as_json:
        output.show_json(compared)
    else:
        title = f"points gained in {episodes} episodes, with half of the 95 % interval; * where it excludes 0"
        output.show(report.table_rows(compared), as_json=False, title=title)
