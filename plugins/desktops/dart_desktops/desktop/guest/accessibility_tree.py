"""Writes the accessibility tree as XML in the format of OSWorld's server, in a process of its own.

The library keeps a loop and a cache.
"""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pyatspi

DEPTH, WIDTH = 50, 1024
SHEET_ROWS = 1_048_576
SHEET_COLUMNS, SHEET_COLUMNS_BEFORE_7_4 = 16384, 1024
UNSEEN = 500
"""Maximum number of cells in a row or column before the first shown one."""
SPACE = "https://accessibility.ubuntu.example.org/ns"
PREFIXES = {
    "st": "state",
    "attr": "attributes",
    "cp": "component",
    "doc": "document",
    "docattr": "document/attributes",
    "txt": "text",
    "val": "value",
    "act": "action",
}
NAMES = {"Chromium": "Google Chrome"}
"""Applications by their names in OSWorld's image, by which its evaluators find them."""
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NOT_IN_NAMES = re.compile(r"[^\w.-]")
PLACEHOLDERS = str.maketrans("", "", "\ufffc\ufffd")
"""Placeholders of embedded objects and of unreadable characters, which are removed."""


def qualified_name(prefix: str, name: str) -> str:
    """Return a name in a namespace, valid in XML."""
    return f"{{{SPACE}/{PREFIXES[prefix]}}}{xml_name(name)}"


def xml_name(name: str) -> str:
    """Replace the characters of a name that XML does not allow with hyphens."""
    allowed = NOT_IN_NAMES.sub("-", name)
    return allowed if allowed[:1].isalpha() or allowed.startswith("_") else f"_{allowed}"


def clean(text: str) -> str:
    """Remove the characters of a text that XML does not allow."""
    return NOT_IN_XML.sub("", text)


def element_attributes(node: Any, brief: bool) -> "dict[str, str]":
    """Return the attributes of an element; a ``brief`` one has a name, states and a box."""
    attributes = {"name": clean(node.name or "")}
    states = {pyatspi.stateToString(state).replace(" ", "_") for state in node.getState().getStates()}
    attributes.update({qualified_name("st", state): "true" for state in states if state})
    if {"visible", "showing"} <= states:
        with contextlib.suppress(NotImplementedError):
            box = node.queryComponent().getExtents(pyatspi.XY_SCREEN)
            attributes[qualified_name("cp", "screencoord")] = str((box.x, box.y))
            attributes[qualified_name("cp", "size")] = str((box.width, box.height))
    if brief:
        return attributes
    for name, value in (node.get_attributes() or {}).items():
        if name:
            attributes[qualified_name("attr", name)] = clean(value)
    for name, query in (("image", node.queryImage), ("selection", node.querySelection)):
        with contextlib.suppress(NotImplementedError):
            query()
            attributes[name] = "true"
    attributes.update(value_attributes(node))
    return attributes


def value_attributes(node: Any) -> "dict[str, str]":
    """Return the attributes of an element's value and actions."""
    attributes = {}
    with contextlib.suppress(NotImplementedError):
        value = node.queryValue()
        of_value = {"value": "currentValue", "min": "minimumValue", "max": "maximumValue", "step": "minimumIncrement"}
        for name, attribute in of_value.items():
            with contextlib.suppress(Exception):  # An application may lack one, and raise anything.
                attributes[qualified_name("val", name)] = str(getattr(value, attribute))
    with contextlib.suppress(NotImplementedError):
        action = node.queryAction()
        for number in range(action.nActions):
            name = action.getName(number).replace(" ", "-")
            attributes[qualified_name("act", f"{name}_desc")] = clean(action.getDescription(number))
            attributes[qualified_name("act", f"{name}_kb")] = clean(action.getKeyBinding(number))
    return attributes


def text_of(node: Any) -> str:
    """Return the text of an element, empty if it has none."""
    with contextlib.suppress(NotImplementedError):
        text = node.queryText()
        return clean(text.getText(0, text.characterCount).translate(PLACEHOLDERS))
    return ""


def build_tree(node: Any, depth: int, sheets: bool, columns: "Callable[[], int]", brief: bool) -> ElementTree.Element:
    """Return an element with its descendants; of a spreadsheet's table only the shown cells."""
    role = (node.getRoleName() or "").strip()
    element = ElementTree.Element(xml_name(role or "unknown"), element_attributes(node, brief))
    element.text = text_of(node) or None
    if depth == DEPTH:
        return element
    sheets = sheets or role == "document spreadsheet"
    # An application that ends or changes meanwhile has the children that could be read.
    with contextlib.suppress(Exception):
        children = shown_cells(node, columns()) if sheets and role == "table" else iter(node)
        for number, child in enumerate(children):
            if number == WIDTH and not (sheets and role == "table"):
                break
            if child is not None:
                element.append(build_tree(child, depth + 1, sheets, columns, brief))
    return element


def shown_cells(table: Any, columns: int) -> Any:
    """Yield the shown cells of a sheet, which are a rectangle."""
    first_column = None
    for row in range(SHEET_ROWS):
        shown = 0
        for column in range(first_column or 0, columns):
            cell = table[row * columns + column]
            if cell.getState().contains(pyatspi.STATE_SHOWING):
                first_column = column if first_column is None else first_column
                shown += 1
                yield cell
            elif first_column is not None or column >= UNSEEN:
                break
        if (first_column is not None and not shown) or (first_column is None and row >= UNSEEN):
            return


def sheet_columns() -> int:
    """Return the number of columns of a sheet in the installed LibreOffice."""
    text = subprocess.run(["libreoffice", "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    version = tuple(int(part) for part in text.split()[1].split(".")[:2])
    return SHEET_COLUMNS if version >= (7, 4) else SHEET_COLUMNS_BEFORE_7_4


def active_terminal(root: ElementTree.Element) -> "str | None":
    """Return the text of the focused terminal in gnome-terminal's active window, None if there is none."""
    active, focused = qualified_name("st", "active"), qualified_name("st", "focused")
    terminals = [
        terminal
        for application in root
        if application.get("name") == "gnome-terminal-server"
        for frame in application
        if frame.get(active) == "true"
        for terminal in frame.iter("terminal")
        if terminal.get(focused) == "true"
    ]
    return (terminals[0].text or "").rstrip() if len(terminals) == 1 else None


def read_tree(application_name: "str | None" = None, brief: bool = False) -> ElementTree.Element:
    """Return the tree of all applications, or of those of a name."""
    root = ElementTree.Element("desktop-frame")
    for application in pyatspi.Registry.getDesktop(0):
        if application is not None and application_name in (None, application.name):
            application.clearCache()
            element = build_tree(application, 1, False, sheet_columns, brief)
            element.set("name", NAMES.get(element.get("name", ""), element.get("name", "")))
            root.append(element)
    return root


def main() -> None:
    """Write the tree; with the argument ``terminal``, T and the active terminal's text.

    With ``serve`` each line on standard input is answered with a brief tree, as a line of JSON.
    """
    for prefix, name in PREFIXES.items():
        ElementTree.register_namespace(prefix, f"{SPACE}/{name}")
    match sys.argv[1:]:
        case ["serve"]:
            for _ in sys.stdin:
                pyatspi.Registry.pumpQueuedEvents()
                print(json.dumps(ElementTree.tostring(read_tree(brief=True), "unicode")), flush=True)  # noqa: T201
        case ["terminal"]:
            if (text := active_terminal(read_tree("gnome-terminal-server"))) is not None:
                sys.stdout.write(f"T{text}")
        case _:
            sys.stdout.write(ElementTree.tostring(read_tree(), "unicode"))


if __name__ == "__main__":
    main()
