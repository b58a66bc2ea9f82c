"""The counts of OSWorld's tasks in the documentation are those of the rows in docs/data/osworld.csv."""

import csv

from dart_desktops.command import COLUMNS, table_of
from dart_desktops.osworld.episode_check import TaskCheck
from tests.sources import ROOT


def checks() -> list[TaskCheck]:
    with (ROOT / "docs/data/osworld.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    return [
        TaskCheck(
            page=row["task"],
            verdict=row["verdict"],  # type: ignore[arg-type]
            reason=row["reason"],
            start=float(row["untouched"]) if row["untouched"] else None,
            oracle=float(row["oracle"]) if row["oracle"] else None,
            made=row["files"] == "made",
            replayed=row["pages"],  # type: ignore[arg-type]
        )
        for row in rows
    ]


def test_the_pages_table_has_the_counts_of_the_rows():
    assert table_of(checks()) in (ROOT / "docs/osworld.md").read_text()
