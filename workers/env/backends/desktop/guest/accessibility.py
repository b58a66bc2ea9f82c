"""Accessible elements of the applications, in a separate process because the library keeps a loop and a cache.

Each line on standard input is a request; the response is a line of JSON.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyatspi

DEPTH = 30
TEXT_CHARACTERS = 1000


def walk_elements(node: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield role, name, text, states and box (screen pixels) of a node and its descendants, if they are shown."""
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
    """Return the text of a node, empty if it has none."""
    try:
        return str(node.queryText().getText(0, TEXT_CHARACTERS))
    except NotImplementedError:
        return ""


def main() -> None:
    """Respond to each request with all shown elements."""
    for _ in sys.stdin:
        pyatspi.Registry.pumpQueuedEvents()
        shown: list[dict[str, Any]] = []
        for application in pyatspi.Registry.getDesktop(0):
            if application is None:
                continue
            application.clearCache()
            for window in application:
                if window is not None:
                    shown.extend(walk_elements(window, 1))
        sys.stdout.write(json.dumps(shown) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
