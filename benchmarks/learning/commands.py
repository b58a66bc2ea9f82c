"""``dart-streams bench learning``, without torch."""

from pathlib import Path
from typing import Annotated

import typer

from console.cli import output
from console.cli.options import AsJson

app = typer.Typer()
Folder = Annotated[Path, typer.Option(help="Folder of screens, policies and results.")]
Seeds = Annotated[int, typer.Option(help="Number of runs of each variant.", min=1, max=16)]
Episodes = Annotated[int, typer.Option(help="Training episodes per run.", min=16)]


@app.command()
def learning(
    seeds: Seeds = 3,
    episodes: Episodes = 3200,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Variant to compare with the base; may be repeated. \\[default: all]", show_default=False),
    ] = None,
    variants: Annotated[Path, typer.Option(help="File of the deployment and its variants.", exists=True)] = Path(
        "benchmarks/learning/variants.toml"
    ),
    folder: Folder = Path(".dart/bench"),
    plot: Annotated[Path | None, typer.Option(help="SVG file for the learning curves.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Held-out gain of each variant of the demonstration over the same seeds, with 95 % intervals.

    One process and thread on recorded screens, without services: 3200 episodes take about a minute of a core. Missing
    screens are recorded first. Runs of the same code are not repeated.
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
        title = f"success and gain in points after {episodes} episodes ± half of the 95 % interval; * excludes 0"
        output.show(report.table_rows(compared), as_json=False, title=title)


@app.command()
def recipes(
    seeds: Seeds = 3,
    episodes: Episodes = 3200,
    only: Annotated[
        list[str] | None, typer.Option(help="Recipe; may be repeated. \\[default: all]", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Your own deployment, with its tasks.", exists=True, show_default=False)
    ] = None,
    folder: Folder = Path(".dart/bench"),
    as_json: AsJson = False,
) -> None:
    """Leaderboard of recipes on recorded screens: the same tasks, seeds and number of episodes for each.

    Gains are in points of held-out success, with 95 % intervals over the seeds. They hold for these pages, this policy
    and this length. Recipes that ask a server, need a file or do not train are left out.
    """
    from benchmarks.learning import comparison, leaderboard

    output.log_to_stderr()
    file = leaderboard.write_variants(config, folder) if config else leaderboard.FILE
    runs = comparison.play_plan(comparison.Plan(file, folder, list(range(seeds)), episodes, only or []), output.note)
    rows = leaderboard.rank_recipes(runs)
    output.show(rows, as_json=as_json, title=f"held-out gain after {episodes} episodes, by recipe")
