"""Writes a placeholder for each line of JSON on stdin, and prints the line with ``made``.

``made`` is false for an unknown kind. A file that cannot be written has the reason in ``broken``.
"""

import json
import subprocess
import sys
from pathlib import Path

from dart_desktops.osworld.placeholders.archives import WRITERS
from dart_desktops.osworld.placeholders.request import FileRequest


def main() -> None:
    """Write the file of each line."""
    for line in sys.stdin:
        data = json.loads(line)
        request = FileRequest.from_line(data)
        print(json.dumps({**data, **write_file(Path(request.path), request)}), flush=True)  # noqa: T201


def write_file(path: Path, request: FileRequest) -> dict[str, object]:
    """Write one file whole or not at all; return whether it was made, or why not."""
    if (write := WRITERS.get(request.kind)) is None:
        return {"made": False}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial{path.suffix}")
    try:
        write(partial, request)
    except (OSError, subprocess.SubprocessError, ImportError) as error:
        partial.unlink(missing_ok=True)
        return {"made": False, "broken": f"{type(error).__name__}: {error}"}
    partial.replace(path)
    return {"made": True}
