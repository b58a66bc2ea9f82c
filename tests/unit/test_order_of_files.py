"""Files of tests that take long begin first, and a run keeps how long each took."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.durations import KEPT, UNKNOWN_S, Recorder, merged, read, sort_longest_first

THIS = "tests/unit/test_order_of_files.py"
OTHER = "tests/unit/test_quantiles.py"


def ordered(known: dict[str, float], *tests: str, groups: dict[str, str] | None = None) -> list[str]:
    marks = {test: SimpleNamespace(args=(group,), kwargs={}) for test, group in (groups or {}).items()}
    items: list[Any] = [
        SimpleNamespace(nodeid=f"{test}::test", get_closest_marker=lambda name, test=test: marks.get(test))
        for test in tests
    ]
    sort_longest_first(items, known)
    return [item.nodeid.removesuffix("::test") for item in items]


def test_the_longest_file_begins_first_and_of_equals_that_of_most_tests():
    known = {"short": 1, "long": 300, "many": 5, "few": 5}
    assert ordered(known, "few", "short", "many", "many", "long") == ["long", "many", "many", "few", "short"]


def test_a_file_without_an_entry_begins_before_files_under_a_minute():
    known = {"short": UNKNOWN_S - 1, "long": UNKNOWN_S + 1}
    assert ordered(known, "short", "unknown", "long") == ["long", "unknown", "short"]


def test_files_of_a_group_begin_together_by_their_sum():
    known = {"long": 50, "one": 30, "two": 40}
    assert ordered(known, "long", "one", "two", groups={"one": "family", "two": "family"}) == ["one", "two", "long"]


def test_a_small_change_keeps_the_old_seconds(tmp_path):
    for name in ("long", "short", "changed", "unrun"):
        (tmp_path / name).touch()
    before = {"long": 100, "short": 0.5, "changed": 100, "unrun": 7, "deleted": 9}
    measured = {"long": 120.4, "short": 1.2, "changed": 130.4, "new": 3.14}
    assert merged(before, measured, tmp_path) == {"changed": 130, "long": 100, "new": 3.1, "short": 0.5, "unrun": 7}


def run(recorder: Recorder, name: str, *seconds: float, failed: bool = False) -> None:
    for duration in seconds:
        report: Any = SimpleNamespace(nodeid=f"{name}::test", duration=duration, failed=failed)
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish(pytest.ExitCode.TESTS_FAILED if failed else pytest.ExitCode.OK)


def test_runs_of_a_command_write_into_one_file(tmp_path):
    file = tmp_path / "folder" / "durations.json"
    run(Recorder(file), THIS, 500, 100, 11)
    run(Recorder(file), OTHER, 900)
    assert (read(file)[THIS], read(file)[OTHER]) == (611, 900)


def test_a_file_that_failed_keeps_its_seconds(tmp_path):
    file = tmp_path / "durations.json"
    run(Recorder(file), OTHER, 900)
    run(Recorder(file), OTHER, 1, failed=True)
    assert read(file)[OTHER] == 900


def test_the_kept_file_names_files_of_tests_and_their_seconds():
    assert [name for name, seconds in read(KEPT).items() if Path(name).suffix != ".py" or seconds < 0] == []
