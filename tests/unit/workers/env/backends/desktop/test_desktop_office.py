"""Office tasks: documents that are written and read, and the profile under which they are opened."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.env.backends.desktop import documents, office, office_profile
from workers.env.backends.desktop.families import problem_of
from workers.env.backends.desktop.problem import LARGE, SessionOutcome

TEXTS = st.text(st.characters(min_codepoint=0x20, blacklist_categories=("Cs", "Cc", "Cn", "Co")), max_size=20)
CELLS = st.one_of(TEXTS.filter(bool), st.integers(-9999, 9999).map(float))


@given(st.lists(st.lists(CELLS, max_size=5), max_size=5))
def test_a_spreadsheet_has_the_cells_that_were_written(rows):
    written = {f"{'ABCDE'[x]}{y + 1}": value for y, row in enumerate(rows) for x, value in enumerate(row)}
    assert documents.cells_of(documents.write_spreadsheet(rows)) == written


@given(st.lists(TEXTS, max_size=5))
def test_a_text_has_the_paragraphs_that_were_written(lines):
    assert documents.paragraphs_of(documents.write_text_document(lines)) == lines


def test_repeated_cells_are_counted_but_not_the_trailing_empty_ones():
    cell = documents.cell_xml
    empty = '<table:table-cell table:number-columns-repeated="2"/>'
    rest = '<table:table-row table:number-rows-repeated="1048570"><table:table-cell/></table:table-row>'
    twice = f'<table:table-row table:number-rows-repeated="2">{empty}{cell(7.0)}</table:table-row>'
    saved = documents.pack_document("spreadsheet", f"<table:table>{twice}{rest}</table:table>")
    assert documents.cells_of(saved) == {"C1": 7.0, "C2": 7.0}


def test_the_same_document_is_the_same_bytes():
    assert documents.write_presentation("Lakes") == documents.write_presentation("Lakes")


@pytest.mark.parametrize("saved", [None, b"", b"no archive", documents.write_presentation("Lakes")[:200]])
def test_what_is_no_document_has_no_cells_and_no_paragraphs(saved):
    assert documents.cells_of(saved) == {}
    assert documents.paragraphs_of(saved) == []


@pytest.mark.parametrize("family", ["sheet", "document", "slide"])
def test_an_office_task_has_programs_and_a_start_that_is_not_its_end(family):
    for seed in range(20):
        problem = problem_of(family, seed)
        [path] = problem.watched
        start = problem.session((320, 240))
        assert start["screen"] == LARGE
        assert not problem.solved(SessionOutcome(None, "", {path: start["files"][path]}), [])
        assert problem.screen((1280, 800)) == (1280, 800)
        assert (problem.programs, problem.accessible) == (office.PROGRAMS, False)


def test_a_sum_is_asked_for_and_a_number_too():
    asked = {problem_of("sheet", seed).instruction.split()[1] for seed in range(20)}
    assert "the" in asked
    assert len(asked) > 5


def test_the_profile_is_valid_and_of_the_build_that_is_installed(tmp_path: Path):
    version = tmp_path / "versionrc"
    version.write_text("[Version]\nAllLanguages=en-US\nbuildid=40(Build:2)\nUpdateURL=\n")
    made = office_profile.profile_files(version)
    assert made[f"{office_profile.FOLDER}/extensions/buildid"] == b"40(Build:2)"
    items = ElementTree.fromstring(made[f"{office_profile.FOLDER}/registrymodifications.xcu"])
    assert len(items) == len(office_profile.SETTINGS)
    assert list(office_profile.profile_files(tmp_path / "none")) == [
        f"{office_profile.FOLDER}/registrymodifications.xcu"
    ]
