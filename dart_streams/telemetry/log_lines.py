"""Log lines: a stream that survives a full disk, and renderers whose fields cannot control a terminal."""

import io
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import ExcInfo

from dart_streams.visible_text import escape_unseen


class LogStream:
    """A text stream that drops lines it cannot write, and logs their number once it can write again."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.dropped = 0
        self.reason = ""

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        try:
            if self.dropped:
                line = {"event": "log lines were dropped", "lines": self.dropped, "reason": self.reason}
                self.stream.write(msgspec.json.encode(line | {"level": "warning"}).decode() + "\n")
                self.stream.flush()
                self.dropped = 0
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self.dropped += text.count("\n")
            self.reason = str(error)
        return len(text)

    def flush(self) -> None:
        """Do nothing: each write is flushed."""

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self.stream.isatty()


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
