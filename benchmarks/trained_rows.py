"""The trainer's rows in the store, which no process of a run reads."""

from typing import Any

from cassandra.cluster import Session

from dart_streams.store.statements import TRAINED_COLUMNS

QUERY = f"SELECT {', '.join(TRAINED_COLUMNS)} FROM trained WHERE run = %s AND train_step >= 0"


def trained_rows(session: Session, run: str) -> list[dict[str, Any]]:
    """Return a run's optimizer steps in order; null collections become empty."""
    found = []
    for values in session.execute(QUERY, (run,)):
        row = dict(zip(TRAINED_COLUMNS, values, strict=True))
        row |= {name: list(row[name] or []) for name in ("group_ids", "trajectory_ids")}
        found.append(row | {"metrics": dict(row["metrics"] or {})})
    return found
