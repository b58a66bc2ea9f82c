"""``dart-streams plan``: how large a deployment must be."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from dart_streams import tasks as task_sets
from dart_streams.cli.options import AsJson
from dart_streams.cli.output import cell, show, show_json
from dart_streams.config import load
from dart_streams.errors import UserError
from dart_streams.launch import capacity as planning

DESKTOP = Path("deploy/config/workload/desktop.toml")


def plan(
    envs: Annotated[int, typer.Option("--envs", help="Environments (slots).", min=1)],
    workload: Annotated[Path, typer.Option(help="A configuration with a workload section.")] = DESKTOP,
    staleness: Annotated[int, typer.Option(help="Largest age of data in weight versions.", min=0)] = 4,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Replace a constant: NAME=VALUE.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Size a deployment: partitions, brokers, database nodes and GPUs for a number of environments, with formulas."""
    base = load(workload)
    if base.workload is None:
        raise UserError(f"{workload} has no [workload]; deploy/config/workload/desktop.toml has one")
    tasks = task_sets.load(workload.parent / base.tasks.file)
    sizing = planning.plan(envs, base.workload, tasks, staleness, dict(map(change, changes or [])))
    if as_json:
        show_json(sizing)
        return
    table = Table(title=f"{envs:,} environments, all of them busy", title_justify="left")
    for name in ("what", "needed", "formula"):
        table.add_column(name, overflow="fold", justify="right" if name == "needed" else "left")
    for figure in sizing.figures:
        table.add_row(
            figure.what, cell(f"{planning.readable(figure.needed)} {figure.unit}".strip()), cell(figure.formula)
        )
    Console().print(table)
    show(sizing.constants, as_json=False, title="constants")


def change(text: str) -> tuple[str, float]:
    """Read ``NAME=VALUE``."""
    name, _, value = text.partition("=")
    try:
        return name, msgspec.convert(value, float, strict=False)
    except msgspec.ValidationError:
        raise UserError(f"--set {text!r}: give NAME=NUMBER") from None
