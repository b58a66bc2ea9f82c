"""The console of every command. Text that it prints cannot control the terminal."""

import io
import os
from collections.abc import Iterable
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from dart_streams.telemetry.log_stream import LogStream
from dart_streams.visible_text import escape_unseen

WIDE = 10_000
"""Columns of what is not a terminal."""


class PlainConsole(Console):
    """A console that escapes the control characters of text; its own styles and movements stay.

    What is piped is not wrapped unless COLUMNS says so: a table would break its ids. A ``lasting`` console drops what
    can't be written, where others end the process: the reader of a pipe is gone, or the disk is full.
    """

    def __init__(self, *, lasting: bool = False, **settings: Any) -> None:
        self._lasting = LogStream(io.StringIO()) if lasting else None
        super().__init__(**settings)
        if not (self.is_terminal or "width" in settings or os.environ.get("COLUMNS")):
            self.width = WIDE

    @property
    def file(self) -> IO[str]:
        """The stream that it writes to now: that of the settings, stderr or stdout."""
        stream = super().file
        if self._lasting is None:
            return stream
        self._lasting.stream = stream
        return cast(IO[str], self._lasting)

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return a string as escaped text, so that layout counts the escapes."""
        return super().render_str(escape_unseen(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield escaped segments."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_unseen(text), style, control)
