"""Substitutes of our own making for published files, by which the machinery is checked where those are not at hand.

Runs in ``.venv/osworld``, whose libraries write the documents, and imports nothing of the project. For each line
``{"path": PATH, "finished": BOOL}`` on stdin it writes a file of the kind that the path's ending says, and answers the
same line with ``made``: false for a kind that it cannot write. A finished document has one word more at its beginning.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

WORD = "Pear"
LINES = ("Apple 3", "Fig 5", "Plum 8", "Quince 13")


def write_workbook(path: Path, finished: bool) -> None:
    """Write a workbook with one sheet."""
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Sheet1"
    sheet.append(["Fruit", "Number", "Price"])
    for line in LINES:
        name, number = line.split()
        sheet.append([name, int(number), int(number) / 4])
    if finished:
        sheet["A1"] = WORD
    book.save(path)


def write_document(path: Path, finished: bool) -> None:
    """Write a text document."""
    import docx

    text = docx.Document()
    for line in ([WORD] if finished else []) + list(LINES):
        text.add_paragraph(line)
    text.save(str(path))


def write_slides(path: Path, finished: bool) -> None:
    """Write a presentation of four slides."""
    import pptx

    shown = pptx.Presentation()
    for line in ([WORD] if finished else []) + list(LINES):
        slide = shown.slides.add_slide(shown.slide_layouts[1])
        slide.shapes.title.text = line
        slide.placeholders[1].text = line * 2
    shown.save(str(path))


def write_image(path: Path, finished: bool) -> None:
    """Write a picture of a disc on a gradient."""
    from PIL import Image, ImageDraw

    picture = Image.linear_gradient("L").resize((320, 240)).convert("RGB")
    ImageDraw.Draw(picture).ellipse((80, 40, 200, 160), fill="navy" if finished else "orange")
    picture.save(path)


def write_pdf(path: Path, finished: bool) -> None:
    """Write a PDF."""
    import pymupdf

    with pymupdf.open() as book:
        for line in ([WORD] if finished else []) + list(LINES):
            book.new_page().insert_text((72, 72), line)
        book.save(path)


def write_text(path: Path, finished: bool) -> None:
    """Write lines."""
    path.write_text("\n".join(([WORD] if finished else []) + list(LINES)) + "\n")


KINDS: dict[str, Callable[[Path, bool], None]] = {
    ".xlsx": write_workbook,
    ".docx": write_document,
    ".pptx": write_slides,
    ".pdf": write_pdf,
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp"), write_image),
    **dict.fromkeys((".txt", ".csv", ".py", ".html", ".srt", ".md"), write_text),
}


def main() -> None:
    """Answer each line."""
    for line in sys.stdin:
        wanted = json.loads(line)
        path = Path(wanted["path"])
        write = KINDS.get(path.suffix.lower())
        if write is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, wanted["finished"])
        sys.stdout.write(json.dumps({**wanted, "made": write is not None}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
