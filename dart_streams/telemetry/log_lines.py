"""Renderers of log lines, whose fields cannot control a terminal."""

import io
from typing import Any, TextIO

import structlog
from structlog.typing import ExcInfo

from dart_streams.visible_text import escape_unseen


def build_renderers() -> list[Any]:
    """Return the last processors of structlog for a terminal."""
    # structlog's default tracebacks show local variables, which may hold passwords.
    return [escape_fields, structlog.dev.ConsoleRenderer(exception_formatter=write_traceback)]


def escape_fields(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Escape control characters in texts, as a processor of structlog; other values are rendered by ``repr``."""
    return {name: escape_unseen(value) if isinstance(value, str) else value for name, value in fields.items()}


def write_traceback(stream: TextIO, error: ExcInfo) -> None:
    """Write a traceback with escaped control characters."""
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, error)
    stream.write(escape_unseen(plain.getvalue()))
