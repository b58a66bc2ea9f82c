"""Rows of the store that recorders of two releases wrote, held to the log.

An old recorder's summary of a trajectory lacks the fields that were added since, so that the new projection of the
observations has more. Its row is held to the record that it announced on ``trajectories``.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from console.repair import projection
from console.repair.projection import ProjectedRow
from dart_streams.config import Config
from dart_streams.store import connect, statements
from tests.faults import invariants
from tests.faults.invariants import Log
from topics.trajectories import Trajectory

TABLES = ("trajectories", "trajectories_by_task")
DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Trajectory)}
"""Default of each field; a list's is a factory, whose value is empty."""


def decode_row(row: ProjectedRow) -> Trajectory:
    """Return the trajectory of a row."""
    return msgspec.json.decode(row.values[-1], type=Trajectory)


def is_earlier(announced: Trajectory, projected: Trajectory) -> bool:
    """Return whether an announced summary is the projected one but for fields that it lacks."""
    return all(
        (value := getattr(announced, name)) in (getattr(projected, name), DEFAULTS[name]) or value == []
        for name in DEFAULTS
    )


def announced_rows(log: Log, logged: Iterable[ProjectedRow]) -> Iterator[ProjectedRow]:
    """Return the rows of the log; a trajectory's summary is the announced one, if the projected one extends it."""
    announced = defaultdict[str, list[Trajectory]](list)
    for event in log.all(Trajectory):
        announced[event.trajectory_id].append(event)
    for row in logged:
        if row.table in TABLES:
            projected = decode_row(row)
            kept = [event for event in announced[projected.trajectory_id] if is_earlier(event, projected)]
            text = statements.trajectory_text((kept or [projected])[-1])
            yield row._replace(values=(*row.values[:-1], text))
        else:
            yield row


def rewritten(row: ProjectedRow) -> ProjectedRow:
    """Return a stored row as this release would encode it."""
    if row.table not in TABLES:
        return row
    return row._replace(values=(*row.values[:-1], statements.trajectory_text(decode_row(row))))


def differing_rows(config: Config, log: Log) -> list[str]:
    """Return the keys of rows on which store and log differ."""
    lags = asyncio.run(invariants.read_lags(config))
    session = connect(config.store)
    try:
        logged = projection.project_rows(config.bus.run, (record.event for record in log.records))
        stored = map(rewritten, projection.stored_rows(session, config.bus.run))
        return invariants.differing(stored, announced_rows(log, logged), invariants.pending(log, lags))
    finally:
        session.cluster.shutdown()
