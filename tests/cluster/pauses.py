"""How long episodes pause while a node is away: gaps between the observations of a log, in milliseconds."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Window(NamedTuple):
    """The time from ``begin_ms`` to ``end_ms`` (epoch milliseconds), named by what happened."""

    name: str
    begin_ms: int
    end_ms: int


class Seen(NamedTuple):
    """An observation: its trajectory, and its record's timestamp."""

    trajectory_id: str
    at_ms: int


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that ``share`` of the values do not exceed; NaN of none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def step_gaps(seen: Iterable[Seen]) -> list[tuple[int, int]]:
    """Return begin and end of each gap between two consecutive observations of a trajectory."""
    times: defaultdict[str, list[int]] = defaultdict(list)
    for one in seen:
        times[one.trajectory_id].append(one.at_ms)
    return [gap for each in times.values() for gap in itertools.pairwise(sorted(each))]


def longest_pause(seen: Iterable[Seen], window: Window) -> int:
    """Return the longest time within a window in which no observation was made by any worker."""
    times = sorted(one.at_ms for one in seen if window.begin_ms <= one.at_ms <= window.end_ms)
    return max(after - before for before, after in itertools.pairwise([window.begin_ms, *times, window.end_ms]))


def summarize(seen: Sequence[Seen], windows: Sequence[Window]) -> dict[str, object]:
    """Return the longest pause of each window, and percentiles of the time of a step inside and outside of them."""
    gaps = step_gaps(seen)

    def is_disturbed(gap: tuple[int, int]) -> bool:
        return any(gap[0] <= window.end_ms and gap[1] >= window.begin_ms for window in windows)

    disturbed = [end - begin for begin, end in gaps if is_disturbed((begin, end))]
    calm = [end - begin for begin, end in gaps if not is_disturbed((begin, end))]
    pauses = {window.name: longest_pause(seen, window) for window in windows}
    return {
        "observations": len(seen),
        "longest_pause_ms": pauses,
        "pause_p99_ms": percentile(list(pauses.values()), 0.99),
        "step_ms": {
            name: {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "max": max(values, default=0)}
            for name, values in (("with every node", calm), ("during a fault", disturbed))
        },
    }
