"""Writes the table of the fault matrix in docs/reliability.md from docs/data/fault-runs.json.

``make reference`` runs it. ``python -m docs.fault_matrix .dart/faults.json`` first copies the results of
``make test-faults`` into the data.
"""

import datetime
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from tests.faults.matrix import CASES, Row

FOLDER = Path(__file__).parent
PAGE = FOLDER / "reliability.md"
DATA = FOLDER / "data/fault-runs.json"
HEAD = """| fault | case and tests | expected | in `make test` | passed | run, s | recovery, s |
|---|---|---|---|---|---|---|
"""


class FaultRuns(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fault, its expected outcome, and the runs of its case in the latest full series."""

    case: str
    """The name in ``CASES``; empty if another command than ``make test-faults`` runs it."""
    tests: str = ""
    """The tests as Markdown, for a fault without a case."""
    fault: str
    expected: str
    in_make_test: Literal["yes", "partly", "no"]
    passed: int
    runs: int
    day: datetime.date
    run_s: float | None
    """Median duration of a run."""
    recovery_s: float | None
    """Median time from the fault to further optimizer steps."""


def read_rows(file: Path = DATA) -> list[FaultRuns]:
    """Read the rows of the table, in its order."""
    return msgspec.json.decode(file.read_bytes(), type=list[FaultRuns])


def add_results(rows: Iterable[FaultRuns], results: Iterable[Row], day: datetime.date) -> list[FaultRuns]:
    """Return the rows with the counts and medians of the cases that have results."""
    by_case = {result.case: result for result in results if result.runs}
    return [replace_result(row, by_case[row.case], day) if row.case in by_case else row for row in rows]


def replace_result(row: FaultRuns, result: Row, day: datetime.date) -> FaultRuns:
    """Return a row with the counts and medians of a series."""
    run_s, recovery_s = (round(statistics.median(s), 1) if s else None for s in (result.seconds, result.recovery_s))
    return msgspec.structs.replace(
        row, passed=result.passed, runs=result.runs, day=day, run_s=run_s, recovery_s=recovery_s
    )


def format_tests(row: FaultRuns) -> str:
    """Return a case with its test files; a file in the folder of the one before it is given by its name."""
    if not row.case:
        return row.tests
    files = list(dict.fromkeys(Path(node.partition("::")[0]) for node in CASES[row.case]))
    folders = [None, *(file.parent for file in files)]
    names = [file.name if file.parent == folder else str(file) for file, folder in zip(files, folders, strict=False)]
    return f"`{row.case}`: {', '.join(f'`{name}`' for name in names)}"


def format_row(row: FaultRuns) -> str:
    """Return a line of the table."""
    seconds = ("–" if value is None else f"{value:g}" for value in (row.run_s, row.recovery_s))
    passed = f"{row.passed} of {row.runs}, {row.day:%d %b}"
    return f"| {' | '.join((row.fault, format_tests(row), row.expected, row.in_make_test, passed, *seconds))} |\n"


def format_table(rows: Iterable[FaultRuns]) -> str:
    """Return the table in Markdown."""
    return HEAD + "".join(map(format_row, rows))


def replace_table(page: str, table: str) -> str:
    """Return a page with its table of the fault matrix replaced."""
    first = HEAD.partition("\n")[0]
    before, head, rest = page.partition(first)
    if not head:
        raise ValueError(f"{PAGE} has no table with the columns {first}")
    return before + table + "\n" + rest.partition("\n\n")[2]


def write_page() -> None:
    """Write the table of the page from the data."""
    PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8"), format_table(read_rows())), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        series = msgspec.json.decode(Path(name).read_bytes(), type=list[Row])
        changed = add_results(read_rows(), series, datetime.date.today())
        DATA.write_bytes(msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n")
    write_page()
