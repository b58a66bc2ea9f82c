"""Read the page's file without a browser."""

import base64
import gzip
import itertools
import json
import re
import uuid
from pathlib import Path
from typing import Any


def element(text: str, name: str) -> str:
    """Return the text of a data block."""
    found = re.search(rf'<script type="[^"]+" id="{name}">([^<]*)</script>', text)
    assert found is not None, f"the file has no {name}"
    return found[1]


def plain_answers(path: Path) -> bytes:
    """Return the answers as they are under their compression."""
    return decompressed(path.read_text(), "archive")


def decompressed(text: str, name: str) -> bytes:
    """Return what a data block has under its compression."""
    return gzip.decompress(base64.b64decode(element(text, name)))


def scripts(text: str) -> list[tuple[str, str]]:
    """Return the scripts that the file starts, by their types."""
    return [(kind, script) for kind, script in json.loads(decompressed(text, "scripts"))]


def answers(path: Path) -> dict[str, Any]:
    """Return the views that the file has, by their keys; an optimizer step's metrics are in the curves only."""
    held = json.loads(plain_answers(path))
    return {
        f"{view}?{query}": answer
        for view, rows in unpack(held["views"], held["table"]).items()
        for query, answer in zip(rows["queries"], rows["answers"], strict=True)
    }


def unpack(packed: Any, table: dict[str, Any]) -> Any:
    """Return a value that was written as columns, as columns.js does."""
    heads = itertools.accumulate(table["heads"])
    ids = [
        str(uuid.UUID(f"{head:012x}{table['tails'][20 * place : 20 * place + 20]}")) for place, head in enumerate(heads)
    ]
    return plain(packed, ids)


def plain(value: Any, ids: list[str]) -> Any:
    """Return a packed value as it was; ``ids`` is the table."""
    if isinstance(value, list):
        return [plain(one, ids) for one in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"=rows": columns}:
            names, lines = [name for name, _ in columns], [plain(column, ids) for _, column in columns]
            return [dict(zip(names, row, strict=True)) for row in zip(*lines, strict=True)]
        case {"=lists": {"sizes": sizes, "values": values}}:
            rest = iter(plain(values, ids))
            return [list(itertools.islice(rest, size)) for size in plain(sizes, ids)]
        case {"=some": {"there": there, "values": values}}:
            rest = iter(plain(values, ids))
            return [next(rest) if one else None for one in there]
        case {"=sums": steps}:
            return list(itertools.accumulate(steps))
        case {"=ids": {"next": first, "back": back}}:
            ends = itertools.accumulate((not places for places in back), initial=first)
            return [ids[end - places] for end, places in zip(ends, back, strict=False)]
    return {name.removeprefix("=") if name.startswith("==") else name: plain(one, ids) for name, one in value.items()}


def screens(path: Path) -> dict[str, bytes]:
    """Return the screens that the file has, by digest."""
    return {
        name: base64.b64decode(url.partition(",")[2])
        for name, url in json.loads(element(path.read_text(), "screens")).items()
    }
