"""Progress of long readings, as lines at an interval."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
INTERVAL_S = 5.0


def report_progress(
    items: Iterable[T],
    name: str,
    report: Callable[[str], None],
    total: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """Yield the items, and report their count, of ``total`` if known, every :data:`INTERVAL_S`."""
    next_s = clock() + INTERVAL_S
    for count, item in enumerate(items, 1):
        yield item
        if (now_s := clock()) >= next_s:
            next_s = now_s + INTERVAL_S
            report(f"{name}: {count:,} of {total:,} so far" if total else f"{name}: {count:,} so far")
