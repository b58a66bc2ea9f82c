"""The table of the fault matrix is that of docs/data/fault-runs.json, and has every case of ``make test-faults``."""

import datetime

import pytest

from docs.fault_matrix import PAGE, add_results, format_table, format_tests, read_rows, replace_table
from tests.faults.matrix import CASES, Row


def test_the_page_has_the_table_of_the_data_with_one_row_a_case():
    assert format_table(read_rows()) in PAGE.read_text(), "make reference"
    assert sorted(row.case for row in read_rows() if row.case) == sorted(CASES)


@pytest.mark.parametrize("row", read_rows(), ids=lambda row: row.case or "without-case")
def test_a_row_names_tests_and_has_possible_counts(row):
    assert "tests/" in format_tests(row)
    assert 0 < row.passed <= row.runs


def test_results_of_a_series_replace_counts_and_medians():
    rows = read_rows()
    series = [Row("poison", runs=3, passed=2, seconds=[40.0, 50.0, 90.0]), Row("clocks")]
    changed = {row.case: row for row in add_results(rows, series, datetime.date(2026, 12, 1))}
    poison = changed.pop("poison")
    assert (poison.passed, poison.runs, poison.run_s, poison.recovery_s) == (2, 3, 50.0, None)
    assert poison.day == datetime.date(2026, 12, 1)
    assert all(row in changed.values() for row in rows if row.case != "poison"), "a case without runs keeps its row"


def test_the_table_of_a_page_is_replaced():
    table = format_table(read_rows()[:1])
    page = f"before\n\n{format_table(read_rows())}\nafter\n"
    assert replace_table(page, table) == f"before\n\n{table}\nafter\n"
    with pytest.raises(ValueError, match="no table"):
        replace_table("before", table)
