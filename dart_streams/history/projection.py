"""The rows that the log makes: what the store has to hold of a run, computed from records. Pure.

Steps and trajectories come from observations, as the recorder sums them up; the trainer's rows from ``trained``; the
newest trainer's epoch from ``weights``. Screenshots are not in the log but beside it: a bundle may have them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from dart_streams.store import statements
from topics import observations, trained, weights
from topics.observations import Observation
from topics.trained import TrainedStep
from topics.trajectories import Trajectory
from topics.weights import WeightVersion
from workers.recorder.trajectory_summary import Incomplete, broken, summarise

READ = (observations.TOPIC, trained.TOPIC, weights.TOPIC)
COLUMNS: dict[str, tuple[str, ...]] = {
    "steps": ("run", "trajectory_id", "step", "observation"),
    "trajectories": ("run", "id", "trajectory"),
    "trajectories_by_task": ("run", "task_id", "finished_at", "id", "trajectory"),
    "trained": ("run", *statements.TRAINED_COLUMNS),
    "epochs": ("run", "model_id", "epoch"),
}
"""The tables of a run, their columns in the order of a row's values."""
KEYS = {"steps": 3, "trajectories": 2, "trajectories_by_task": 4, "trained": 2, "epochs": 2}
"""How many of the first columns are the key."""
BITS = 128

_encode = msgspec.json.Encoder().encode


class ProjectedRow(NamedTuple):
    """A row of a table; times are epoch milliseconds."""

    table: str
    values: tuple[Any, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """What names the row within its table."""
        return self.values[: KEYS[self.table]]


def rows(run: str, events: Iterable[Any]) -> Iterator[ProjectedRow]:
    """Yield the rows of a run, from its events in the log's order; of rows with the same key the last one counts."""
    under_way: dict[str, dict[int, Observation]] = defaultdict(dict)
    ended: set[str] = set()
    epochs: dict[str, int] = {}
    for event in events:
        match event:
            case Observation():
                yield ProjectedRow("steps", statements.step_values(run, event))
                if event.trajectory_id in ended:
                    continue  # a repeat
                under_way[event.trajectory_id][event.step] = event
                if event.end is not None:
                    ended.add(event.trajectory_id)
                    yield from finished(run, under_way.pop(event.trajectory_id))
            case TrainedStep():
                yield ProjectedRow("trained", (run, *(getattr(event, name) for name in statements.TRAINED_COLUMNS)))
            case WeightVersion():
                epochs[event.model_id] = max(event.epoch, epochs.get(event.model_id, 0))
    for model_id, epoch in epochs.items():
        yield ProjectedRow("epochs", (run, model_id, epoch))


def finished(run: str, seen: dict[int, Observation]) -> list[ProjectedRow]:
    """Return the rows of a trajectory that has ended, as the recorder writes them."""
    steps = [seen[number] for number in sorted(seen)]
    try:
        trajectory = summarise(steps)
    except Incomplete as gap:
        last = steps[-1]
        trajectory = broken(last, f"trajectory {last.trajectory_id}: {gap}")
    return trajectory_rows(run, trajectory)


def trajectory_rows(run: str, trajectory: Trajectory) -> list[ProjectedRow]:
    """Return a finished trajectory under its id and under its task."""
    text, identity = statements.trajectory_text(trajectory), trajectory.trajectory_id
    return [
        ProjectedRow("trajectories", (run, identity, text)),
        ProjectedRow("trajectories_by_task", (run, trajectory.task_id, trajectory.finished_ms, identity, text)),
    ]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table's rows of a run: how many, and a digest that does not depend on their order."""

    table: str
    rows: int
    digest: str


class TableDigest:
    """Counts rows and their digest by table; a row written again replaces the one before."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[tuple[Any, ...], int]] = {table: {} for table in COLUMNS}

    def add(self, row: ProjectedRow) -> None:
        """Count a row."""
        self.hashes[row.table][row.key] = hash_of(row.values)

    def tables(self) -> list[Table]:
        """Return the digest of each table."""
        return [
            Table(table=table, rows=len(found), digest=f"{sum(found.values()) % (1 << BITS):032x}")
            for table, found in self.hashes.items()
        ]


def hash_of(values: tuple[Any, ...]) -> int:
    """Return a number of a row's values; a map's order says nothing, and the database keeps an empty list as null."""
    plain = [dict(sorted(value.items())) if isinstance(value, dict) else value for value in values]
    plain = [None if value == [] or value == {} else value for value in plain]
    return int.from_bytes(blake2b(_encode(plain), digest_size=BITS // 8).digest())
