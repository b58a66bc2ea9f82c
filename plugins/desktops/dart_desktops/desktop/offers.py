"""Functions that desktops offer: files of the home, a shell, and the document that LibreOffice shows."""

from collections.abc import Mapping
from typing import Any

from dart_desktops.desktop.guest import office_calls
from dart_desktops.desktop.problem import Problem
from dart_streams.actions.offered import offer_call
from topics.values import OfferedCall

TEXT = {"type": "string"}
NUMBER = {"type": "integer", "minimum": 1}
VALUE = {"type": ["number", "string"]}
ACCEPT = f"--accept={office_calls.PIPE}"
"""Argument of LibreOffice, without which it offers nothing."""


def offer_function(
    name: str, description: str, optional: Mapping[str, Any] | None = None, **required: Any
) -> OfferedCall:
    """Return an offer of a function with these parameters."""
    properties = {**required, **(optional or {})}
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return offer_call(name, description, schema)


FILES = (
    offer_function("files.list", "Return the names in a folder of the home.", {"path": TEXT}),
    offer_function("files.read", "Return the text of a file.", path=TEXT),
    offer_function("files.write", "Replace the text of a file, or make one.", path=TEXT, text=TEXT),
)
SHELL = offer_function("shell.run", "Run a command line in the home; return its output.", command=TEXT)
CELLS = {"type": "object", "additionalProperties": VALUE, "minProperties": 1}
OFFICE: Mapping[str, tuple[OfferedCall, ...]] = {
    "calc": (
        offer_function("calc.read_cells", "Return the cells of the sheet that are not empty."),
        offer_function("calc.set_cells", 'Set cells by name, as {"B3": 5, "B4": "=SUM(B1:B3)"}.', cells=CELLS),
        offer_function("calc.save", "Save the document."),
    ),
    "writer": (
        offer_function("writer.read_text", "Return the paragraphs of the document."),
        offer_function("writer.add_paragraph", "Add a paragraph at the end.", text=TEXT),
        offer_function("writer.save", "Save the document."),
    ),
    "impress": (
        offer_function("impress.read_texts", "Return slide, shape and text of each text."),
        offer_function("impress.set_text", "Replace the text of a shape.", slide=NUMBER, shape=NUMBER, text=TEXT),
        offer_function("impress.save", "Save the document."),
    ),
}


def offers_of(problem: Problem) -> tuple[OfferedCall, ...]:
    """Return the functions of a task's desktop."""
    return (*OFFICE.get(problem.office, ()), *FILES, SHELL)
