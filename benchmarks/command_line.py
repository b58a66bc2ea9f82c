"""Options and output that benchmark commands share."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from console.cli import output

DeploymentFile = Annotated[Path, typer.Option("--config", help="Configuration file of the deployment.", exists=True)]
DEMO = Path("deploy/config/demo.toml")


def show(found: dict[str, Any], as_json: bool) -> None:
    """Print metrics as JSON, or as text."""
    typer.echo(json.dumps(found, indent=2)) if as_json else show_lines(found)


def show_parts(parts: Mapping[str, Callable[[], dict[str, Any]]], as_json: bool) -> None:
    """Measure and print one part after the other; as JSON all at the end, and each to stderr at once."""
    found = {}
    for name, measure in parts.items():
        found[name] = measure()
        if as_json:
            output.note(json.dumps({name: found[name]}))
        else:
            show_lines({name: found[name]})
    if as_json:
        typer.echo(json.dumps(found, indent=2))


def show_lines(found: Mapping[str, Any], indent: str = "") -> None:
    """Print metrics as text, one a line; those of a group that has groups itself follow its name."""
    for name, value in found.items():
        title = f"{indent}{name.replace('_', ' '):>20}"
        if not isinstance(value, Mapping):
            typer.echo(f"{title}  {output.cell_text(value)}")
        elif not any(isinstance(part, Mapping) for part in value.values()):
            typer.echo(f"{title}  {format_pairs(value)}")
        else:
            typer.echo(title)
            show_lines(value, f"{indent}  ")


def format_pairs(value: Mapping[str, Any]) -> str:
    """Return the parts of a metric in one line."""
    return ", ".join(f"{name} {part}" for name, part in value.items())
