"""Options and output that benchmark commands share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dart_streams.console.cli.output import cell_text

DeploymentFile = Annotated[Path, typer.Option("--config", help="Configuration file of the deployment.", exists=True)]
DEMO = Path("deploy/config/demo.toml")


def show(found: dict[str, Any]) -> None:
    """Print metrics as JSON."""
    typer.echo(json.dumps(found, indent=2))


def show_lines(found: dict[str, Any]) -> None:
    """Print metrics as text, one a line."""
    for name, value in found.items():
        typer.echo(
            f"{name.replace('_', ' '):>20}  {cell_text(value) if not isinstance(value, dict) else format_pairs(value)}"
        )


def format_pairs(value: dict[str, Any]) -> str:
    """Return the parts of a metric in one line."""
    return ", ".join(f"{name} {part}" for name, part in value.items())
