"""What is known of a missing file: its type, and what the task does with it."""

from typing import Any, NamedTuple

WORD = "Pear"
"""First word of a finished document."""
LINES = ("Apple 3", "Fig 5", "Plum 8", "Quince 13")


class FileRequest(NamedTuple):
    """A missing file: where it is to be written, and what it has to contain.

    ``kind`` is its suffix, from its place on the machine if its URL has none. ``aspects`` are parts that the task's
    metric compares (``placeholder_mirror``). ``members`` are paths that an archive has to contain.
    """

    path: str
    kind: str
    finished: bool = False
    aspects: tuple[str, ...] = ()
    members: tuple[str, ...] = ()

    @classmethod
    def from_line(cls, data: dict[str, Any]) -> "FileRequest":
        """Return the request of a line of JSON."""
        aspects, members = tuple(data.get("aspects", ())), tuple(data.get("members", ()))
        return cls(data["path"], data["kind"], data["finished"], aspects, members)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of text in it; a finished document begins with one more word."""
        return (WORD, *LINES) if self.finished else LINES

    def differs(self, aspect: str) -> bool:
        """Return whether this is a finished document whose task compares ``aspect``."""
        return self.finished and aspect in self.aspects
