"""Placeholders of office documents and texts."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dart_desktops.osworld.placeholders import pictures
from dart_desktops.osworld.placeholders.request import LINES, WORD, FileRequest

CONVERT_S = 120.0
SHEETS = ("Sheet1", "Sheet2", "Sheet3")
HEADER = ("Fruit", "Number", "Price")
RANGE = f"A1:C{len(LINES) + 1}"


def write_workbook(path: Path, request: FileRequest) -> None:
    """Write a workbook with one sheet, or three, whose header has the word of a finished document."""
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for name in SHEETS if "sheets" in request.aspects else SHEETS[:1]:
        fill_sheet(book.create_sheet(name), request)
    if request.differs("chart"):
        book.create_sheet(SHEETS[1]).add_chart(make_chart(book[SHEETS[0]]), "E2")
    if request.differs("pivot_table"):
        book.create_sheet(SHEETS[1])._pivots.append(make_pivot_table())
    book.save(path)


def fill_sheet(sheet: Any, request: FileRequest) -> None:
    """Write the rows of a sheet; in a finished one the header differs, and names too if the task compares those."""
    sheet.append([WORD if request.finished else HEADER[0], *HEADER[1:]])
    for line in LINES:
        name, number = line.split()
        sheet.append([f"{WORD} {name}" if request.differs("names") else name, int(number), int(number) / 4])


def make_chart(sheet: Any) -> Any:
    """Return a column chart of a sheet's numbers."""
    from openpyxl.chart import BarChart, Reference

    chart = BarChart()
    chart.title = WORD
    chart.add_data(Reference(sheet, min_col=2, min_row=1, max_row=len(LINES) + 1), titles_from_data=True)
    return chart


def make_pivot_table() -> Any:
    """Return a pivot table that sums the first sheet's numbers by name."""
    from openpyxl.pivot import cache, record, table

    names = [line.split()[0] for line in LINES]
    numbers = [int(line.split()[1]) for line in LINES]
    items = cache.SharedItems(_fields=[record.Text(v=name) for name in names])
    amounts = cache.SharedItems(containsNumber=True, containsInteger=True, minValue=min(numbers), maxValue=max(numbers))
    fields = [cache.CacheField(name=name, sharedItems=amounts) for name in HEADER[1:]]
    source = cache.CacheSource(type="worksheet", worksheetSource=cache.WorksheetSource(ref=RANGE, sheet=SHEETS[0]))
    records = [
        record.Record(_fields=[record.Index(v=place), record.Number(v=number), record.Number(v=number / 4)])
        for place, number in enumerate(numbers)
    ]
    pivot = table.TableDefinition(
        name="PivotTable1",
        cacheId=1,
        dataCaption="Values",
        location=table.Location(ref="A3:B8", firstHeaderRow=1, firstDataRow=1, firstDataCol=1),
        pivotFields=[
            table.PivotField(axis="axisRow", items=[table.FieldItem(x=place) for place in range(len(names))]),
            table.PivotField(dataField=True),
            table.PivotField(),
        ],
        rowFields=[table.RowColField(x=0)],
        dataFields=[table.DataField(name="Sum of Number", fld=1)],
    )
    pivot.cache = cache.CacheDefinition(
        cacheSource=source, cacheFields=[cache.CacheField(name=HEADER[0], sharedItems=items), *fields]
    )
    pivot.cache.records = record.RecordList(r=records)
    return pivot


def write_document(path: Path, request: FileRequest) -> None:
    """Write a text document; a finished one has a table, a picture or references if the task compares those."""
    import docx

    text = docx.Document()
    for line in request.lines:
        text.add_paragraph(line)
    if request.differs("table"):
        text.add_table(rows=2, cols=2).cell(0, 0).text = WORD
    if request.differs("picture"):
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder) / "picture.png"
            pictures.draw_picture(finished=True).save(picture)
            text.add_picture(str(picture))
    if request.differs("references"):
        for line in ("References", WORD):
            text.add_paragraph(line)
    text.save(str(path))


def write_slides(path: Path, request: FileRequest) -> None:
    """Write a presentation with a slide for each line."""
    import pptx

    presentation = pptx.Presentation()
    for line in request.lines:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = line
        slide.placeholders[1].text = line * 2
    presentation.save(str(path))


def write_pdf(path: Path, request: FileRequest) -> None:
    """Write a PDF with a page for each line."""
    import pymupdf

    with pymupdf.open() as book:
        for line in request.lines:
            book.new_page().insert_text((72, 72), line)
        book.save(path)


def write_text(path: Path, request: FileRequest) -> None:
    """Write a text file."""
    path.write_text("\n".join(request.lines) + "\n", encoding="utf-8")


def write_json(path: Path, request: FileRequest) -> None:
    """Write a JSON object, whose first key is the word of a finished document."""
    path.write_text(json.dumps({line.split()[0]: line for line in request.lines}, indent=4) + "\n", encoding="utf-8")


def write_email(path: Path, request: FileRequest) -> None:
    """Write a mail."""
    head = ("From: Ann <ann@example.org>", "To: anonym-x2024@outlook.com", f"Subject: {request.lines[0]}")
    path.write_text(
        "\r\n".join((*head, "Date: Mon, 01 Jan 2024 12:00:00 +0000", "", *request.lines, "")), encoding="utf-8"
    )


def convert_with(write: Callable[[Path, FileRequest], None], kind: str) -> Callable[[Path, FileRequest], None]:
    """Return a writer that has LibreOffice convert a document of ``kind``."""

    def write_converted(path: Path, request: FileRequest) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder / f"document{kind}", request)
            profile = f"-env:UserInstallation=file://{folder}/profile"
            target = request.kind.removeprefix(".")
            run_quietly(
                ["soffice", profile, "--headless", "--convert-to", target, f"document{kind}"], folder, CONVERT_S
            )
            shutil.copyfile(folder / f"document{request.kind}", path)

    return write_converted


def run_quietly(command: Sequence[str], folder: Path, seconds: float) -> None:
    """Run a program in a folder; raise CalledProcessError if it fails."""
    subprocess.run(command, cwd=folder, timeout=seconds, check=True, stdout=subprocess.DEVNULL)


TEXTS = (".txt", ".csv", ".html", ".srt", ".md", ".css", ".tex", ".bib")
WRITERS: dict[str, Callable[[Path, FileRequest], None]] = {
    ".xlsx": write_workbook,
    ".docx": write_document,
    ".pptx": write_slides,
    ".pdf": write_pdf,
    ".eml": write_email,
    ".xls": convert_with(write_workbook, ".xlsx"),
    ".ods": convert_with(write_workbook, ".xlsx"),
    ".doc": convert_with(write_document, ".docx"),
    ".odt": convert_with(write_document, ".docx"),
    ".epub": convert_with(write_document, ".docx"),
    ".ppt": convert_with(write_slides, ".pptx"),
    **dict.fromkeys((".json", ".code-workspace"), write_json),
    **dict.fromkeys(TEXTS, write_text),
}
