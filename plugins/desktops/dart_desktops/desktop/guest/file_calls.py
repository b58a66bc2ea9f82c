"""Functions on files of the home, beside mouse and keyboard."""

from pathlib import Path
from typing import Any

HOME = Path("/home/user")
READ_BYTES = 2**14
"""Read bytes of a file; the worker shows less to the policy."""
MOST_NAMES = 200


def call(name: str, arguments: "dict[str, Any]") -> str:
    """Return the result of a function as text.

    Raises OSError for a file that cannot be read or written, ValueError for one outside of the home, KeyError for an
    unknown function.
    """
    return FUNCTIONS[name](home_path(arguments.get("path", ".")), arguments)


def home_path(path: str) -> Path:
    """Return the absolute path of a path in the home."""
    found = (HOME / path).resolve()
    if found != HOME and HOME not in found.parents:
        raise ValueError(f"{path} is not in {HOME}")
    return found


def list_files(path: Path, _: "dict[str, Any]") -> str:
    """Return the names in a folder, those of folders with a slash, without hidden ones."""
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    return "\n".join(f"{entry.name}{'/' if entry.is_dir() else ''}" for entry in entries[:MOST_NAMES])


def read_file(path: Path, _: "dict[str, Any]") -> str:
    """Return the beginning of a file's text."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    with path.open("rb") as file:
        return file.read(READ_BYTES).decode(errors="replace")


def write_file(path: Path, arguments: "dict[str, Any]") -> str:
    """Write a text to a file."""
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is no file")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(arguments["text"])
    return f"Wrote {path.relative_to(HOME)}."


FUNCTIONS = {"files.list": list_files, "files.read": read_file, "files.write": write_file}
