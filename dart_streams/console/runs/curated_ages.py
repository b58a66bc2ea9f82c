"""How old, in weight versions, the members of groups were when they were curated. Pure."""

import itertools
from bisect import bisect_right

from dart_streams.console.runs.run_state import RunState


def curated_ages(state: RunState) -> list[tuple[int, int]]:
    """Return when each group was curated (epoch milliseconds), and an online member's age in versions, newest last."""
    published = sorted((version.at_ms, number) for number, version in state.versions.items())
    times = [at_ms for at_ms, _ in published]
    newest = list(itertools.accumulate((number for _, number in published), max))
    return [
        (at_ms, max(0, newest[known - 1] - member.version_min))
        for group, at_ms in sorted(state.groups.values(), key=lambda known: known[1])
        if (known := bisect_right(times, at_ms))
        for member in group.members
        if member.version_min is not None and member.source == "online"
    ]
