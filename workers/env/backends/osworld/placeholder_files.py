"""Writes placeholders for published files, with which the machinery is checked where those are missing.

It runs in ``.venv/osworld``, whose libraries write the documents, and imports nothing of the project. For each line
``{"path": PATH, "finished": BOOL}`` on stdin it writes a file of the path's type, and prints the line with ``made``,
which is false for an unknown type. A finished document begins with one more word.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

WORD = "Pear"
LINES = ("Apple 3", "Fig 5", "Plum 8", "Quince 13")


def write_workbook(path: Path, lines: Sequence[str]) -> None:
    """Write a workbook with one sheet, whose header has the word of a finished document."""
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Sheet1"
    sheet.append([WORD if WORD in lines else "Fruit", "Number", "Price"])
    for line in LINES:
        name, number = line.split()
        sheet.append([name, int(number), int(number) / 4])
    book.save(path)


def write_document(path: Path, lines: Sequence[str]) -> None:
    """Write a text document."""
    import docx

    text = docx.Document()
    for line in lines:
        text.add_paragraph(line)
    text.save(str(path))


def write_slides(path: Path, lines: Sequence[str]) -> None:
    """Write a presentation with a slide for each line."""
    import pptx

    presentation = pptx.Presentation()
    for line in lines:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = line
        slide.placeholders[1].text = line * 2
    presentation.save(str(path))


def write_image(path: Path, lines: Sequence[str]) -> None:
    """Write a picture of a disc on a gradient."""
    from PIL import Image, ImageDraw

    picture = Image.linear_gradient("L").resize((320, 240)).convert("RGB")
    ImageDraw.Draw(picture).ellipse((80, 40, 200, 160), fill="navy" if WORD in lines else "orange")
    picture.save(path)


def write_pdf(path: Path, lines: Sequence[str]) -> None:
    """Write a PDF with a page for each line."""
    import pymupdf

    with pymupdf.open() as book:
        for line in lines:
            book.new_page().insert_text((72, 72), line)
        book.save(path)


def write_text(path: Path, lines: Sequence[str]) -> None:
    """Write a text file."""
    path.write_text("\n".join(lines) + "\n")


WRITERS: dict[str, Callable[[Path, Sequence[str]], None]] = {
    ".xlsx": write_workbook,
    ".docx": write_document,
    ".pptx": write_slides,
    ".pdf": write_pdf,
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp"), write_image),
    **dict.fromkeys((".txt", ".csv", ".py", ".html", ".srt", ".md"), write_text),
}


def main() -> None:
    """Write the file of each line."""
    for line in sys.stdin:
        request = json.loads(line)
        path = Path(request["path"])
        write = WRITERS.get(path.suffix.lower())
        if write is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, [WORD, *LINES] if request["finished"] else LINES)
        print(json.dumps({**request, "made": write is not None}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
