"""``dart-streams replay``: a bundle's decisions again, or what other settings would have changed."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dart_streams.cli.options import AsJson
from dart_streams.cli.output import note
from dart_streams.errors import UserError
from dart_streams.replay import rerun, whatif
from dart_streams.replay.bundle import Bundle
from dart_streams.replay.recorded import config_of, tasks_of

LONGEST = 300
"""Characters of one side of a divergence in the terminal; --json has it whole."""


def replay(
    path: Annotated[Path, typer.Argument(help="A bundle, made by `capture`.", metavar="BUNDLE")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="What if KEY were VALUE; may be given several times.", metavar="KEY=VALUE"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw the what-if (svg).", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Decide again what was recorded, without services, and compare; the first difference is shown, with exit code 1.

    With --set: what each setting alone, and all together, would have changed.
    """
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    bundle = Bundle(path)
    if settings:
        show_what_if(what_if(bundle, settings), plot, as_json=as_json)
        return
    if plot:
        raise UserError("--plot draws a what-if: give it at least one --set KEY=VALUE")
    outcome = rerun.replay(bundle)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode())
    else:
        tell(outcome)
    if not outcome.equal:
        raise typer.Exit(1)


def tell(outcome: rerun.Outcome) -> None:
    """Print what a replay found."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("agent", "inputs", "decisions", "compared byte for byte"):
        table.add_column(name, justify="left" if name == "agent" else "right")
    for count in outcome.agents:
        table.add_row(count.agent, *(f"{number:,}" for number in msgspec.structs.astuple(count)[1:]))
    console.print(table)
    found = outcome.divergence
    if found is None:
        decisions = sum(count.decisions for count in outcome.agents)
        console.print(f"[green]equal[/green]: {decisions:,} decisions; digest {outcome.digest}")
        return
    console.print(f"[red]differs[/red] first at {escape(found.input)}, agent {found.agent}: {escape(found.what)}")
    for side in ("recorded", "replayed"):
        text = str(getattr(found, side))
        console.print(f"  {side}: {escape(text[:LONGEST] + ('…' if len(text) > LONGEST else ''))}", soft_wrap=True)
    console.print(f"  cause: {escape(found.cause)}", soft_wrap=True)


def what_if(bundle: Bundle, settings: Sequence[str]) -> list[whatif.Figures]:
    """Run the circle for each setting alone and, if there are several, for all together."""
    variants = {setting: config_of(bundle, [setting]) for setting in settings}
    if len(settings) > 1:
        variants["all of these"] = config_of(bundle, settings)
    return whatif.compare(whatif.Recorded(bundle), tasks_of(bundle), config_of(bundle), variants)


def show_what_if(found: Sequence[whatif.Figures], plot: Path | None, *, as_json: bool) -> None:
    """Print a column a setting, its steps over its rollouts as bars, and draw the plot if it was asked for."""
    from dart_streams.replay import whatif_plot

    if plot:
        plot.write_text(whatif_plot.svg(found))
        note(f"drawn: {plot}")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    table = Table(title="what if", title_justify="left")
    table.add_column("")
    for figures in found:
        table.add_column(escape(figures.name), justify="right", overflow="fold")
    for field in msgspec.structs.fields(whatif.Figures):
        if field.name not in ("name", "curve"):
            values = [getattr(figures, field.name) for figures in found]
            table.add_row(field.name.replace("_", " "), *("" if value is None else f"{value:,}" for value in values))
    console = Console()
    console.print(table)
    curves = [figures for figures in found if figures.curve]
    most = max((figures.curve[-1][1] for figures in curves), default=0)
    console.print("optimiser steps over rollouts ended")
    for figures in curves:
        console.print(
            f"  {whatif_plot.bars(figures, most)} {figures.steps_trained:>6,}  {escape(figures.name)}", soft_wrap=True
        )
