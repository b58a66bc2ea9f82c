"""Time in slices: what the curves of a run are sums over."""

import msgspec

SLICE_MS = 5_000
"""The width of a time slice of the curves."""
MAX_SPAN_MS = 24 * 3_600_000
"""The longest span of time that is cut into slices."""


class TimeSlice(msgspec.Struct):
    """Sums over one time slice; ``busy_ms`` is slot time with an episode under way, of any purpose.

    ``acting_ms`` is that part of it in which an action was executed.
    """

    steps: int = 0
    episodes: int = 0
    rewarded: int = 0
    reward: float = 0.0
    busy_ms: float = 0.0
    acting_ms: float = 0.0


def split_span(start_ms: int, end_ms: int) -> list[tuple[int, float]]:
    """Split a span of time over the slices it touches: (slice number, milliseconds in it).

    A span longer than :data:`MAX_SPAN_MS` is no episode's, but a clock's that was wrong at one end: it touches none.
    """
    if end_ms - start_ms > MAX_SPAN_MS:
        return []
    return [
        (number, min(end_ms, (number + 1) * SLICE_MS) - max(start_ms, number * SLICE_MS))
        for number in range(start_ms // SLICE_MS, end_ms // SLICE_MS + 1)
    ]
