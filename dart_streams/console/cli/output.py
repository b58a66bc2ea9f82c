"""How commands print: rows as a table for people or as JSON for programs, notes on stderr."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import structlog
import typer
from rich.markup import escape
from rich.table import Table

from dart_streams.console.views.console import PlainConsole
from dart_streams.telemetry import terminal_lines
from dart_streams.visible_text import escape_unseen

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
"""Cells with these texts are colored."""

notes = PlainConsole(stderr=True, highlight=False)


def note(text: str) -> None:
    """Print something that is not the command's result."""
    notes.print(text, markup=False, soft_wrap=True)


def log_to_stderr() -> None:
    """Keep stdout for the command's result."""
    first: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
    ]
    structlog.configure(
        processors=[*first, *terminal_lines.build_renderers()],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    print_line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_line(text: str) -> None:
    """Print a line of a command's result; what it has from others cannot control the terminal."""
    typer.echo(escape_unseen(text))


def show(rows: Sequence[msgspec.Struct], *, as_json: bool, title: str = "", empty: str = "nothing") -> None:
    """Print rows of one kind, a column a field."""
    if as_json:
        show_json(rows)
        return
    if not rows:
        print_line(empty)
        return
    table = Table(title=title or None, title_justify="left")
    for field in msgspec.structs.fields(rows[0]):
        table.add_column(field.name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(cell_text(value) for value in msgspec.structs.astuple(row)))
    PlainConsole().print(table)


def cell_text(value: Any) -> str:
    """Return a value as the text of a table cell."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return escape("\n".join(f"{key}={value}" for key, value in value.items()))
    if isinstance(value, list | tuple):
        return escape(", ".join(map(str, value)))
    text = escape(str(value))
    return f"[{STYLES[text]}]{text}[/]" if text in STYLES else text
