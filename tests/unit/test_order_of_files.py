"""Files of tests that take long begin first, in the order that tests/conftest.py gives them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.conftest import LONGEST, TESTS, pytest_collection_modifyitems


def ordered(reorder_by_count: bool, *files: Path) -> list[Path]:
    config: Any = SimpleNamespace(getoption=lambda name, default: reorder_by_count)
    items: list[Any] = [SimpleNamespace(path=file) for file in files]
    pytest_collection_modifyitems(config, items)
    return [item.path for item in items]


def test_long_files_begin_first_and_then_those_of_most_tests():
    longest, next_longest = (TESTS / name for name in LONGEST[:2])
    one, two = TESTS / "one", TESTS / "two"
    assert ordered(False, one, two, two, next_longest, longest) == [longest, next_longest, two, two, one]


def test_without_the_option_the_order_is_pytests_own():
    longest = TESTS / LONGEST[0]
    assert ordered(True, TESTS / "one", longest) == [TESTS / "one", longest]


def test_each_of_them_is_a_file():
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []
