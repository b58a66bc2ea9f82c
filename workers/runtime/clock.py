"""The wall clock, as events carry it, and durations."""

import time


def now_ms() -> int:
    """Return the present time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def since_ms(began: float) -> float:
    """Return the milliseconds since ``began`` (``time.perf_counter``)."""
    return (time.perf_counter() - began) * 1000
