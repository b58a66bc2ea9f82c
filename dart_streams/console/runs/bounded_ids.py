"""The newest of many ids: what a process remembers of a run that may last for days."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Id = TypeVar("Id")


class NewestIds(Generic[Id]):
    """Ids in the order they came, no more than ``keep`` of them: ``forget`` is called with those before.

    With a ``keep`` of None nothing is forgotten, and nothing noted here.
    """

    def __init__(self, keep: int | None, forget: Callable[[Id], None]) -> None:
        self.keep = keep
        self.forget = forget
        self.has_forgotten = False
        self._ids: deque[Id] = deque()

    def add(self, identity: Id) -> None:
        """Note an id that was not noted before."""
        if self.keep is None:
            return
        self._ids.append(identity)
        while len(self._ids) > self.keep:
            self.has_forgotten = True
            self.forget(self._ids.popleft())
