"""How long each file of tests takes: kept in durations.json, measured by a run, and used to begin long files first."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from filelock import FileLock

from tests.sources import ROOT

ENVIRONMENT = "DART_TEST_DURATIONS"
"""A run with this variable measures its files, and writes them to the file that it names."""

KEPT = Path(__file__).with_suffix(".json")

UNKNOWN_S = 60.0
"""A file without an entry is taken for one of a minute, so that it begins early."""

Seconds = dict[str, float]


def read(file: Path = KEPT) -> Seconds:
    """Return the seconds of each file by its path from the root of the project."""
    return json.loads(file.read_text())


def sort_longest_first(items: list[pytest.Item], known: Mapping[str, float]) -> None:
    """Sort tests in place: units of work that take longest begin first, and of equals those of most tests.

    A unit of work is a file, or the files of an ``xdist_group``: one worker runs them one after the other.
    """
    files: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        files[_unit(item)].add(_file(item))
    seconds = {unit: sum(known.get(file, UNKNOWN_S) for file in of_unit) for unit, of_unit in files.items()}
    count = Counter(map(_unit, items))
    items.sort(key=lambda item: (-seconds[_unit(item)], -count[_unit(item)], _unit(item)))


def _unit(item: pytest.Item) -> str:
    group = item.get_closest_marker("xdist_group")
    return _file(item) if group is None else str(group.kwargs.get("name") or group.args[0])


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def merged(before: Mapping[str, float], measured: Mapping[str, float], root: Path = ROOT) -> Seconds:
    """Return the seconds to keep: measured ones, and those from before of files that were not run and still exist.

    A change of less than a quarter, or than a second, keeps the old figure, so that a diff shows what has changed.
    """
    kept = {name: seconds for name, seconds in before.items() if (root / name).is_file()}
    for name, seconds in measured.items():
        old = kept.get(name)
        if old is None or abs(seconds - old) > max(1.0, old / 4):
            kept[name] = round(seconds, 1) if seconds < 10 else round(seconds)
    return dict(sorted(kept.items()))


class Recorder:
    """Sums the seconds of set-up, call and teardown by file; under pytest-xdist in its controller."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a phase of a test."""
        name = report.nodeid.partition("::")[0]
        self.seconds[name] += report.duration
        if report.failed:
            self.failed.add(name)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write what was measured, beside other runs of the same time; a file that failed keeps its old seconds."""
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        measured = {name: seconds for name, seconds in self.seconds.items() if name not in self.failed}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.file.with_suffix(".lock")):
            before = read(self.file if self.file.exists() else KEPT)
            written = self.file.with_suffix(".new")
            written.write_text(json.dumps(merged(before, measured), indent=1) + "\n")
            written.replace(self.file)
