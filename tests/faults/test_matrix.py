"""The matrix names existing tests, and counts a failed run as one."""

import pytest

from tests.faults.matrix import CASES, ROOT, Row, interpreter


@pytest.mark.parametrize("case", CASES)
def test_a_case_names_tests_that_there_are(case: str):
    for node in CASES[case]:
        file, _, function = node.partition("::")
        assert not function or f"def {function.partition('[')[0]}(" in (ROOT / file).read_text()
        assert (ROOT / file).is_file()
        assert file.startswith("tests/model/") == ("/.venv/model/" in interpreter(case)), "one environment for a case"


def test_a_run_that_failed_is_counted_as_a_run_but_not_as_passed():
    row = Row("republished")
    row.add(passed=True, seconds=60.04, measured=[{"recovery_s": 3.0, "restart_s": 9.0}])
    row.add(passed=False, seconds=20.0, measured=[])
    assert (row.runs, row.passed, row.seconds, row.recovery_s) == (2, 1, [60.0, 20.0], [3.0])
