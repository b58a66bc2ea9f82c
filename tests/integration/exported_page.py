"""What is inside the page's file, read without a browser."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any


def element(text: str, name: str) -> str:
    """Return the text of a data block."""
    found = re.search(rf'<script type="[^"]+" id="{name}">([^<]*)</script>', text)
    assert found is not None, f"the file has no {name}"
    return found[1]


def plain_answers(path: Path) -> bytes:
    """Return the answers as they are under their compression."""
    return gzip.decompress(base64.b64decode(element(path.read_text(), "archive")))


def answers(path: Path) -> dict[str, Any]:
    """Return the views that the file has, by their keys."""
    found: dict[str, Any] = json.loads(plain_answers(path))
    return found


def screens(path: Path) -> dict[str, bytes]:
    """Return the screens that the file has, by digest."""
    return {
        name: base64.b64decode(url.partition(",")[2])
        for name, url in json.loads(element(path.read_text(), "screens")).items()
    }
