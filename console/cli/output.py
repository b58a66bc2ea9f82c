"""Printing of commands: rows as a table or as JSON on stdout, notes on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from console.views.console import PlainConsole
from dart_streams.visible_text import escape_unseen

if TYPE_CHECKING:
    import msgspec

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
"""Colors of table cells with these texts."""

notes = PlainConsole(stderr=True, highlight=False, lasting=True)


def note(text: str) -> None:
    """Print a text that is not part of the command's result."""
    notes.print(text, markup=False, soft_wrap=True)


def log_to_stderr() -> None:
    """Send logs to stderr: stdout holds the command's result alone."""
    import structlog

    from dart_streams.telemetry import log_lines

    first: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
    ]
    structlog.configure(
        processors=[*first, *log_lines.build_renderers()], logger_factory=lambda *_: structlog.PrintLogger(sys.stderr)
    )


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    import msgspec

    print_line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_line(text: str) -> None:
    """Print a line of the result, with control characters escaped."""
    typer.echo(escape_unseen(text))


def show(rows: Sequence[msgspec.Struct], *, as_json: bool, title: str = "", empty: str = "nothing") -> None:
    """Print rows of one kind, with a column for each field."""
    if as_json:
        show_json(rows)
        return
    if not rows:
        print_line(empty)
        return
    from msgspec.structs import astuple, fields
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for field in fields(rows[0]):
        table.add_column(field.name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*map(cell_text, astuple(row)))
    PlainConsole().print(table)


def cell_text(value: Any) -> str:
    """Return a value as the text of a table cell."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return escape("\n".join(f"{key}={item}" for key, item in value.items()))
    if isinstance(value, list | tuple):
        return escape(", ".join(map(str, value)))
    text = escape(str(value))
    return f"[{STYLES[text]}]{text}[/]" if text in STYLES else text
