"""The mends of ``make mutants``: each can be undone in the present tree, and its tests are there."""

import shutil

import pytest

from benchmarks.mutants.__main__ import Mend, Replacement, choose, read_mends, undo_mend
from tests.sources import ROOT

MENDS = read_mends()
NAMED = pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.name.replace(" ", "-"))


@NAMED
def test_a_mend_can_be_undone(mend: Mend, tmp_path):
    for part in mend.replacements:
        (tmp_path / part.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / part.file, tmp_path / part.file)
    before = {part.file: (tmp_path / part.file).read_text() for part in mend.replacements}
    with undo_mend(mend, tmp_path):
        for file, text in before.items():
            compile((tmp_path / file).read_text(), file, "exec")
            assert (tmp_path / file).read_text() != text
    assert {file: (tmp_path / file).read_text() for file in before} == before


@NAMED
def test_the_tests_of_a_mend_are_there(mend: Mend):
    for test in mend.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text() if name else (ROOT / file).is_file()


def test_a_seed_chooses_the_same_mends():
    chosen = choose(MENDS, 30, 7)
    assert chosen == choose(MENDS, 30, 7) and len({mend.name for mend in chosen}) == 30


def test_a_text_that_moved_is_named(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    mend = Mend("a bound", ("tests",), (Replacement("a.py", "y = 2", "y = 3"),))
    with pytest.raises(ValueError, match=r"a bound: a\.py has its text 0 times"), undo_mend(mend, tmp_path):
        pass
