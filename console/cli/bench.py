"""``dart-streams bench``: the benchmarks of a checkout, which the wheel does not contain."""

import importlib
import sys
from pathlib import Path

import typer

from dart_streams.errors import UserError


def load_benchmarks() -> typer.Typer:
    """Return the benchmark commands of the working directory; raise :class:`UserError` if it is no checkout."""
    if not Path("benchmarks/commands.py").is_file():
        raise UserError("the benchmarks are in the repository, not in the wheel: run this in a checkout of it")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    application: typer.Typer = importlib.import_module("benchmarks.commands").app
    return application


def __getattr__(name: str) -> typer.Typer:
    """Return the commands as ``app`` on first use."""
    if name == "app":
        return load_benchmarks()
    raise AttributeError(name)
