"""Functions on the document that LibreOffice shows, by UNO: one call in a process of its own.

The arguments of the process are the function's name and its arguments as JSON. It prints ``{"returned": text}`` or
``{"error": text}``.
"""

import json
import sys
from typing import Any

PIPE = "pipe,name=office;urp;"
"""Connection that the application accepts (``--accept``)."""
MOST_ROWS, MOST_COLUMNS = 200, 26


def current_document() -> Any:
    """Return the shown document; raise RuntimeError if there is none."""
    import uno

    context = uno.getComponentContext()
    resolver = context.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", context)
    office = resolver.resolve(f"uno:{PIPE}StarOffice.ComponentContext")
    desktop = office.ServiceManager.createInstanceWithContext("com.sun.star.frame.Desktop", office)
    document = desktop.getCurrentComponent()
    if document is None or not hasattr(document, "store"):
        raise RuntimeError("LibreOffice shows no document")
    return document


def read_cells(document: Any, _: "dict[str, Any]") -> str:
    """Return the name and the value of each cell of the shown sheet that is not empty."""
    sheet = document.CurrentController.ActiveSheet
    cursor = sheet.createCursor()
    cursor.gotoEndOfUsedArea(False)
    rows, columns = (
        min(end + 1, most)
        for end, most in ((cursor.RangeAddress.EndRow, MOST_ROWS), (cursor.RangeAddress.EndColumn, MOST_COLUMNS))
    )
    values = sheet.getCellRangeByPosition(0, 0, columns - 1, rows - 1).getDataArray()
    return "\n".join(
        f"{chr(ord('A') + column)}{number}: {f'{value:g}' if isinstance(value, float) else value}"
        for number, row in enumerate(values, start=1)
        for column, value in enumerate(row)
        if value != ""
    )


def set_cells(document: Any, arguments: "dict[str, Any]") -> str:
    """Set cells of the shown sheet; a text that begins with = is a formula."""
    sheet = document.CurrentController.ActiveSheet
    for name, value in arguments["cells"].items():
        cell = sheet.getCellRangeByName(name)
        if not isinstance(value, str):
            cell.setValue(value)
        elif value.startswith("="):
            cell.setFormula(value)
        else:
            cell.setString(value)
    return f"Set {', '.join(arguments['cells'])}."


def read_paragraphs(document: Any, _: "dict[str, Any]") -> str:
    """Return the paragraphs of a text."""
    return str(document.getText().getString())


def add_paragraph(document: Any, arguments: "dict[str, Any]") -> str:
    """Add a paragraph at the end of a text."""
    text = document.getText()
    end = text.createTextCursorByRange(text.getEnd())
    if text.getString():
        text.insertControlCharacter(end, 0, False)  # PARAGRAPH_BREAK
    text.insertString(end, arguments["text"], False)
    return "Added a paragraph."


def text_shapes(document: Any) -> "list[tuple[str, Any]]":
    """Return slide and number of each shape with a text, and the shape."""
    pages = document.getDrawPages()
    return [
        (f"slide {page + 1}, shape {number + 1}", shape)
        for page in range(pages.getCount())
        for number in range(pages.getByIndex(page).getCount())
        if hasattr(shape := pages.getByIndex(page).getByIndex(number), "getString")
    ]


def read_shapes(document: Any, _: "dict[str, Any]") -> str:
    """Return the texts of all slides."""
    return "\n".join(f"{place}: {shape.getString()}" for place, shape in text_shapes(document))


def set_shape(document: Any, arguments: "dict[str, Any]") -> str:
    """Replace the text of a shape of a slide."""
    place = f"slide {arguments['slide']}, shape {arguments['shape']}"
    shape = dict(text_shapes(document)).get(place)
    if shape is None:
        raise ValueError(f"no text at {place}")
    shape.setString(arguments["text"])
    return f"Set the text of {place}."


def save_document(document: Any, _: "dict[str, Any]") -> str:
    """Save the shown document to its file."""
    document.store()
    return "Saved."


FUNCTIONS = {
    "calc.read_cells": read_cells,
    "calc.set_cells": set_cells,
    "calc.save": save_document,
    "writer.read_text": read_paragraphs,
    "writer.add_paragraph": add_paragraph,
    "writer.save": save_document,
    "impress.read_texts": read_shapes,
    "impress.set_text": set_shape,
    "impress.save": save_document,
}


def main() -> None:
    """Call the function that the arguments name, and print its result."""
    name, arguments = sys.argv[1:]
    try:
        result = {"returned": FUNCTIONS[name](current_document(), json.loads(arguments))}
    except Exception as error:  # noqa: BLE001 - exceptions of UNO have no base of their own
        result = {"error": getattr(error, "Message", "") or str(error) or type(error).__name__}
    print(json.dumps(result))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
