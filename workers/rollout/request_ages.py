"""How long a request has waited in its topic at least, by this process's monotonic clock alone. Pure but for that.

The times in a record are of the host that wrote it, whose clock may be minutes off. But what lies before an end offset
that was read at some time was written before that time. So ends are noted while requests wait for room, and a request
that has waited longer than its budget since such a time is late for certain; one that no end was noted for is new.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from aiokafka import ConsumerRecord

from topics.action_requests import ActionRequest

P = TypeVar("P", bound=Hashable)


class RequestAges(Generic[P]):
    """The end offsets of partitions, and when they were noted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: defaultdict[P, deque[tuple[int, float]]] = defaultdict(deque)

    def note_ends(self, ends: Mapping[P, int]) -> None:
        """Note end offsets that the broker has returned by now."""
        now_s = self._clock()
        for partition, end in ends.items():
            noted = self._ends[partition]
            if not noted or noted[-1][0] < end:
                noted.append((end, now_s))

    def age_s(self, partition: P, offset: int) -> float:
        """Return for how long the record has been in the log at least; ask for offsets in ascending order."""
        noted = self._ends[partition]
        while noted and noted[0][0] <= offset:
            noted.popleft()
        return self._clock() - noted[0][1] if noted else 0.0

    def keep(self, partitions: Iterable[P]) -> None:
        """Forget all partitions but these; one that is assigned again later begins anew."""
        kept = set(partitions)
        for partition in [partition for partition in self._ends if partition not in kept]:
            del self._ends[partition]


def budget_s(request: ActionRequest, record: ConsumerRecord) -> float:
    """Return how long the env host waits for the reply from the moment it sent the request, in seconds.

    Both times are of that host's clock: the deadline, and the record's creation (``message.timestamp.type``).
    """
    return (request.deadline_ms - record.timestamp) / 1000
