"""All that a filter matches as JSON lines: trajectories as the table has them, and records of a topic. Pure."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from dart_streams.console.runs.run_state import RunState
from dart_streams.console.views.page.episodes import is_wanted, row_of
from dart_streams.console.views.page.log_view import RecordText

AT_ONCE = 500
"""Lines that are made and sent together."""


def trajectory_lines(state: RunState, wanted: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the trajectories that a filter matches, the newest first; those that finish meanwhile are left out."""
    found = [one for one in reversed(state.trajectories.values()) if is_wanted(one, wanted)]
    for start in range(0, len(found), AT_ONCE):
        yield encoded([row_of(one, state) for one in found[start : start + AT_ONCE]])


def record_lines(found: Sequence[RecordText]) -> Iterator[bytes]:
    """Yield the records of a topic that were found."""
    for start in range(0, len(found), AT_ONCE):
        yield encoded(found[start : start + AT_ONCE])


def encoded(rows: Sequence[msgspec.Struct]) -> bytes:
    """Return rows as JSON lines."""
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
