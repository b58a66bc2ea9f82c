"""Log lines for a person at a terminal: no field of theirs can control it."""

import io
from typing import Any, TextIO

import structlog
from structlog.typing import ExcInfo

from dart_streams.visible_text import escape_unseen


def build_renderers() -> list[Any]:
    """Return the last processors of structlog for a terminal."""
    # The default tracebacks show local variables, passwords included.
    return [visible_fields, structlog.dev.ConsoleRenderer(exception_formatter=visible_traceback)]


def visible_fields(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Write texts so that they can be seen; a processor of structlog. Of anything else its ``repr`` is written."""
    return {name: escape_unseen(value) if isinstance(value, str) else value for name, value in fields.items()}


def visible_traceback(stream: TextIO, found: ExcInfo) -> None:
    """Write a traceback, whose last line is a text of others."""
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, found)
    stream.write(escape_unseen(plain.getvalue()))
