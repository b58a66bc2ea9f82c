"""How commands print: rows as a table for people or as JSON for programs, notes on stderr."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import structlog
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
"""Cells with these texts are coloured."""

notes = Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """Print something that is not the command's result."""
    notes.print(text, markup=False, soft_wrap=True)


def log_to_stderr() -> None:
    """Keep stdout for the command's result."""
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def show(rows: Sequence[msgspec.Struct], *, as_json: bool, title: str = "", empty: str = "nothing") -> None:
    """Print rows of one kind, a column a field."""
    if as_json:
        show_json(rows)
        return
    if not rows:
        typer.echo(empty)
        return
    table = Table(title=title or None, title_justify="left")
    for field in msgspec.structs.fields(rows[0]):
        table.add_column(field.name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in msgspec.structs.astuple(row)))
    Console().print(table)


def cell(value: Any) -> str:
    """Return a value as the text of a table cell."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return escape("\n".join(f"{key}={value}" for key, value in value.items()))
    if isinstance(value, list | tuple):
        return escape(", ".join(map(str, value)))
    text = escape(str(value))
    return f"[{STYLES[text]}]{text}[/]" if text in STYLES else text
