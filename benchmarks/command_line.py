"""What commands of several subjects share: the option that names a deployment, and how figures are printed."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dart_streams.console.cli.output import cell_text

DeploymentFile = Annotated[Path, typer.Option("--config", help="The deployment.", exists=True)]
DEMO = Path("deploy/config/demo.toml")


def show(found: dict[str, Any]) -> None:
    """Print a benchmark's figures."""
    typer.echo(json.dumps(found, indent=2))


def show_lines(found: dict[str, Any]) -> None:
    """Print a benchmark's figures for people, a line each."""
    for name, value in found.items():
        typer.echo(
            f"{name.replace('_', ' '):>20}  {cell_text(value) if not isinstance(value, dict) else format_pairs(value)}"
        )


def format_pairs(value: dict[str, Any]) -> str:
    """Return the parts of a figure in a line."""
    return ", ".join(f"{name} {part}" for name, part in value.items())
