"""The counts of OSWorld's tasks in the documentation are those of the rows in docs/data/osworld.csv."""

import csv

from dart_streams.console.cli.osworld import COLUMNS, table_of
from tests.sources import ROOT
from workers.env.backends.osworld.episode_check import TaskCheck


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


def test_readme_and_page_name_the_same_counts():
    rows = checks()
    start, solved = sum(row.start == 0 for row in rows), sum(row.oracle == 1 for row in rows)
    assert (len(rows), len({row.page for row in rows})) == (369, 369)
    text = " ".join((ROOT / "docs/osworld.md").read_text().split())
    assert f"Of OSWorld's {len(rows)} tasks, {start} start with reward 0 on our desktops" in text
    assert f"Of these, {solved} reach reward 1" in text
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{start} of OSWorld's {len(rows)} tasks" in readme
    assert f"{solved} reach" in readme
