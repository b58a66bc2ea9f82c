"""The wall clock of events, and durations."""

import time


def now_ms() -> int:
    """Return the present time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def since_ms(started: float) -> float:
    """Return the milliseconds since ``started`` (``time.perf_counter``)."""
    return (time.perf_counter() - started) * 1000
