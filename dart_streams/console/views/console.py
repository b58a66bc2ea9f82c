"""The console on which every command prints: no text that it shows can control the terminal."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from dart_streams.visible_text import escape_unseen


class PlainConsole(Console):
    """A console that writes control characters of texts as escapes; colors and movements of its own stay."""

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return a string as text, laid out as it will be seen."""
        return super().render_str(escape_unseen(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is written."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_unseen(text), style, control)
