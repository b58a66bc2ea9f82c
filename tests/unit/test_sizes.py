"""Sizes that only fall: each has today's number as its bound, which the commit that lowers it lowers too."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from docs.reference import iterate_keys
from tests import durations
from tests.sources import CORE, PRODUCT, ROOT

CORE_LINES = 58_793
"""Without plug-ins. Lines are those of Python files, blank ones and docstrings included."""
CORE_TEST_LINES = 68_637
CORE_KEYS = 82
LONG, LONG_FILES = 300, 32
"""Lines of a long Python file, and how many files outside of tests are that long."""
FILES = 20
CROWDED = {
    "benchmarks": 31,
    "dart_streams/config": 27,
    "console/cli": 31,
    "console/launch": 27,
    "console/views/page": 30,
    "console/views/page/static": 39,
    "dart_streams/curation": 21,
    "dart_streams/policy": 22,
    "topics": 21,
    "workers/env": 22,
    "plugins/desktops/dart_desktops/desktop/guest": 25,
    "plugins/desktops/dart_desktops/osworld": 27,
    "workers/rollout": 21,
    "benchmarks/learning": 22,
}
"""Folders of more than :data:`FILES` files, and how many they have."""
CIRCLES = 6
STARTS = {"session_of", "spread_session", "attached_session", "start_run", "circle"}
"""Functions that return or start the processes of a whole run; ``circle`` is that of tests/faults."""
CIRCLE_FOLDERS = ("integration", "faults", "model")
"""Folders of `make test` that have real services."""
MINUTES = 57
"""Of the files of `make test` in tests/durations.json, one after the other."""


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (ROOT / folder).rglob("*.py")


def lines(files: Iterator[Path]) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def starts(file: Path) -> int:
    """Return how many calls of a file of tests start a whole circle."""
    tree = ast.parse(file.read_text())
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = Counter(call.id if isinstance(call, ast.Name) else getattr(call, "attr", "") for call in calls)
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "tests.faults.circle"
        for alias in node.names
    }
    return sum(names[name] for name in STARTS if name != "circle" or name in imported)


def test_nothing_grows_lines():
    assert lines(python_files(*CORE)) <= CORE_LINES
    assert lines(python_files("tests")) <= CORE_TEST_LINES


def test_the_core_gets_no_more_keys():
    core = [key.place for key in iterate_keys() if key.is_core]
    assert len(core) <= CORE_KEYS, "make it a constant beside its use, or a key of a plug-in's table"


def test_no_folder_gets_more_files():
    files = [path for name in (*PRODUCT, "benchmarks", "examples") for path in (ROOT / name).rglob("*")]
    sources = [path for path in files if path.is_file() and path.suffix != ".pyc"]
    count = Counter(str(path.parent.relative_to(ROOT)) for path in sources)
    assert {folder: number for folder, number in count.items() if number > CROWDED.get(folder, FILES)} == {}


def test_no_more_files_are_long():
    long = [file for file in python_files(*PRODUCT, "benchmarks", "docs", "examples") if lines(iter([file])) >= LONG]
    assert len(long) <= LONG_FILES, long


def test_no_more_circles_are_started():
    files = [file for folder in CIRCLE_FOLDERS for file in (ROOT / "tests" / folder).glob("*.py")]
    found = {
        file.name: number for file in files if file.name.startswith(("test_", "conftest")) and (number := starts(file))
    }
    assert sum(found.values()) <= CIRCLES, found


def test_the_tests_take_no_more_minutes():
    seconds = {file: s for file, s in durations.read().items() if not file.startswith("tests/model/breadth/")}
    assert sum(s for file, s in seconds.items() if file.split("/")[1] in (*CIRCLE_FOLDERS, "unit")) / 60 <= MINUTES
