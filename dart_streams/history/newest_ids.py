"""The newest of many ids: what a process remembers of a run that may last for days."""

from collections import deque
from typing import Generic, TypeVar

Id = TypeVar("Id")


class NewestIds(Generic[Id]):
    """Ids in the order they came, no more than ``keep`` of them (None: all that come; then nothing is noted here)."""

    def __init__(self, keep: int | None) -> None:
        self.keep = keep
        self.ids: deque[Id] = deque()

    def add(self, identity: Id) -> list[Id]:
        """Note an id that was not noted before; return those that are now to be forgotten, the oldest first."""
        if self.keep is None:
            return []
        self.ids.append(identity)
        return [self.ids.popleft() for _ in range(len(self.ids) - self.keep)]
