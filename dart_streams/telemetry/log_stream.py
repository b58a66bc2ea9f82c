"""Where log lines go. A full disk loses lines; it does not end the process that writes them."""

from typing import TextIO

import msgspec


class LogStream:
    """A text stream that drops what cannot be written, and says how much that was as soon as it can be."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.dropped = 0
        self.reason = ""

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        try:
            if self.dropped:
                self.stream.write(self.notice())
                self.stream.flush()
                self.dropped = 0
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self.dropped += text.count("\n")
            self.reason = str(error)
        return len(text)

    def notice(self) -> str:
        """Return the line that stands for those dropped."""
        line = {"event": "log lines were dropped", "lines": self.dropped, "reason": self.reason, "level": "warning"}
        return msgspec.json.encode(line).decode() + "\n"

    def flush(self) -> None:
        """Do nothing: each write is flushed."""

    def isatty(self) -> bool:
        """Say whether a person reads along."""
        return self.stream.isatty()
