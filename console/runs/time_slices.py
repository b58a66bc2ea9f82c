"""Slices of time over which the curves of a run are sums."""

from collections import OrderedDict

import msgspec

SLICE_MS = 5_000
MAX_SLICES = 30 * 24 * 3_600_000 // SLICE_MS
"""Slices that are kept, a month's: times in records may be any, and the first slices go."""
MAX_SPAN_MS = 24 * 3_600_000
"""Longest span that is split into slices; a longer one comes from a wrong clock."""


class TimeSlice(msgspec.Struct):
    """Sums over a slice; ``busy_ms`` is slot time with an episode, and ``acting_ms`` its part that executes actions."""

    steps: int = 0
    episodes: int = 0
    rewarded: int = 0
    reward: float = 0.0
    busy_ms: float = 0.0
    acting_ms: float = 0.0


class TimeSlices(OrderedDict[int, TimeSlice]):
    """The slices of a run in which something happened, by number; one that is missing is made."""

    def __missing__(self, number: int) -> TimeSlice:
        """Add an empty slice, instead of the first one if there are :data:`MAX_SLICES`."""
        if len(self) >= MAX_SLICES:
            self.popitem(last=False)
        return self.setdefault(number, TimeSlice())


def split_span(start_ms: int, end_ms: int) -> list[tuple[int, float]]:
    """Return the slices that a span touches and the milliseconds in each, none if it exceeds :data:`MAX_SPAN_MS`."""
    if end_ms - start_ms > MAX_SPAN_MS:
        return []
    return [
        (number, min(end_ms, (number + 1) * SLICE_MS) - max(start_ms, number * SLICE_MS))
        for number in range(start_ms // SLICE_MS, end_ms // SLICE_MS + 1)
    ]
