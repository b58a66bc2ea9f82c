"""What assistive technology sees of the applications: a process of its own, for its library keeps a loop and a cache.

A line on standard input is a request, a line of JSON the answer.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyatspi

DEPTH = 30
TEXT_CHARACTERS = 1000


def walk_elements(node: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield what is shown of a node and those under it: role, name, text, states, and the box in screen pixels."""
    states = sorted(pyatspi.stateToString(state) for state in node.getState().getStates())
    if depth and "showing" in states:
        box = node.queryComponent().getExtents(pyatspi.DESKTOP_COORDS)
        yield {
            "role": node.getRoleName(),
            "name": node.name,
            "text": text_of(node),
            "states": states,
            "box": [box.x, box.y, box.width, box.height],
        }
    if depth < DEPTH:
        for child in node:
            if child is not None:
                yield from walk_elements(child, depth + 1)


def text_of(node: Any) -> str:
    """Return the text in a node, empty if it has none."""
    try:
        return str(node.queryText().getText(0, TEXT_CHARACTERS))
    except NotImplementedError:
        return ""


def main() -> None:
    """Answer each request with all elements that are shown."""
    for _ in sys.stdin:
        pyatspi.Registry.pumpQueuedEvents()
        found: list[dict[str, Any]] = []
        for application in pyatspi.Registry.getDesktop(0):
            if application is None:
                continue
            application.clearCache()
            for window in application:
                if window is not None:
                    found.extend(walk_elements(window, 1))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
