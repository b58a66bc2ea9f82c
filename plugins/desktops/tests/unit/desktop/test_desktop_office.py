"""Office tasks: documents that are written and read, and the profile under which they are opened."""

import base64
import gzip
import io
import re
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_desktops.desktop import documents, office, office_profile
from dart_desktops.desktop.families import problem_of
from dart_desktops.desktop.problem import LARGE, Content, Problem, SessionOutcome

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


def solution(family: str) -> tuple[Problem, bytes]:
    """Return a task and a document that solves it, in an archive of deflated files."""
    problem = problem_of(family, 1)
    match family, re.findall(r'"(.*)"|Put (\d+) into the cell (\w)(\d)', problem.instruction)[0]:
        case "sheet", [_, number, column, row]:
            [before] = problem.files.values()
            cells = documents.cells_of(before) | {f"{column}{row}": float(number)}  # type: ignore[arg-type]
            saved = documents.write_spreadsheet([[cells.get(f"{x}{y}", "") for x in "ABCDEF"] for y in range(1, 9)])
        case "document", [line, *_]:
            [before] = problem.files.values()
            saved = documents.write_text_document([*documents.paragraphs_of(before), line])  # type: ignore[arg-type]
        case _, [title, *_]:
            saved = documents.write_presentation(title)
    return problem, packed(zipfile.ZipFile(io.BytesIO(saved)).read("content.xml"))


def packed(xml: bytes, method: int = zipfile.ZIP_DEFLATED, name: str = "content.xml") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(name, xml)
    return buffer.getvalue()


def spoiled(good: bytes) -> Iterator[bytes]:
    """Yield documents that a policy may leave in place of a good one."""
    yield from (b"", b"no archive", b"%PDF-1.7", b"\x89PNG\r\n\x1a\n", gzip.compress(good), bytes(2**21), good * 2**13)
    yield from (good[: len(good) * part // 12] for part in range(1, 12))
    local, central = good.index(b"PK\x03\x04"), good.index(b"PK\x01\x02")
    for offset, value in ((8, 99), (8, 1), (6, 1), (6, 64), (18, 1), (14, 1), (26, 3), (26, 255)):
        changed = bytearray(good)  # Method, flags, sizes, checksum or the length of the name.
        changed[local + offset] = changed[central + offset + 2] = value
        yield bytes(changed)
    xml = zipfile.ZipFile(io.BytesIO(good)).read("content.xml")
    yield from (packed(xml, method) for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    yield packed(xml, name="elsewhere.xml")
    yield from map(packed, (b"", b"<", b"<a/>", xml[:-9], xml.replace(b"<office:body>", b""), b"\0" + xml, xml * 2))
    yield packed(b'<?xml version="1.0" encoding="none"?>' + xml)
    yield packed(b'<!DOCTYPE a [<!ENTITY b "c">]>' + xml)
    for filling in (b" " * 2**26, b"<a>" * 2**18 + b"</a>" * 2**18, b"<a/>" * 2**20, b'<a b="c"/>' * 2**18):
        yield packed(xml.replace(b"</office:body>", filling + b"</office:body>"))
    for wrong in (b"many", b"9" * 5000, b"1e3", b"-"):
        yield packed(xml.replace(b"<text:p>", b'<table:table-row table:number-rows-repeated="%b"/>' % wrong))
        yield packed(xml.replace(b'office:value="', b'office:value="%b ' % wrong).replace(b"<text:p>", b"<text:h>", 1))


@pytest.mark.parametrize("family", ["sheet", "document", "slide"])
def test_a_spoiled_document_is_not_solved_and_takes_little_memory(family):
    problem, good = solution(family)
    [path] = problem.watched

    def solves(content: bytes) -> bool:
        state: dict[str, Content] = {path: base64.b64encode(content).decode()}
        return problem.solved(SessionOutcome(None, "", state), [])

    assert solves(good)
    files = [*spoiled(good), packed(good)]
    assert len(files) >= 40
    tracemalloc.start()
    try:
        assert [number for number, content in enumerate(files) if solves(content)] == []
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


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
