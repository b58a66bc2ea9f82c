"""The console of every command. Text that it prints cannot control the terminal."""

import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from dart_streams.visible_text import escape_unseen

WIDE = 10_000
"""Columns of what is not a terminal."""


class PlainConsole(Console):
    """A console that escapes the control characters of text; its own styles and movements stay.

    What is piped is not wrapped unless COLUMNS says so: a table would break its ids.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if not (self.is_terminal or "width" in settings or os.environ.get("COLUMNS")):
            self.width = WIDE

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return a string as escaped text, so that layout counts the escapes."""
        return super().render_str(escape_unseen(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield escaped segments."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_unseen(text), style, control)
