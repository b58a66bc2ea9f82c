"""A text stream for logs and messages that survives a full disk and a closed pipe. Standard library only."""

import contextlib
import json
import os
from pathlib import Path
from typing import IO


class LogStream:
    """A text stream that drops lines it cannot write, and logs their number once it can write again."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.dropped = 0
        self.reason = ""

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        try:
            if self.dropped:
                line = {"event": "log lines were dropped", "lines": self.dropped, "reason": self.reason}
                self.stream.write(json.dumps(line | {"level": "warning"}) + "\n")
                self.stream.flush()
                self.dropped = 0
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self.dropped += text.count("\n")
            self.reason = str(error)
            if isinstance(error, BrokenPipeError):
                self.discard()
        return len(text)

    def discard(self) -> None:
        """Discard all further text: nobody reads it, and what is left in the stream would fail at the exit."""
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), self.stream.fileno())

    def flush(self) -> None:
        """Do nothing: each write is flushed."""

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self.stream.isatty()
