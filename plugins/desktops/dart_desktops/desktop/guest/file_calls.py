"""Files of a session: functions beside mouse and keyboard, contents for the reward, and folders that are emptied."""

import base64
import itertools
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HOME = Path("/home/user")
READ_BYTES = 2**14
"""Read bytes of a file; the worker shows less to the policy."""
MOST_NAMES = 200
CONTENT_BYTES, NAMES = 2**20, 1000
"""Maximum size of a watched file and number of names of a watched folder."""
COPIES = "copies of "
"""Begin of a watched name that is followed by a text: the files of any folder but the trash that have it."""
TRASH = HOME / ".local/share/Trash"


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
    path.write_text(arguments["text"], encoding="utf-8")
    return f"Wrote {path.relative_to(HOME)}."


FUNCTIONS = {"files.list": list_files, "files.read": read_file, "files.write": write_file}


def seen_content(path: Path, folders: Iterable[Path]) -> Any:
    """Return the content of a watched path, or of the files in some folders that have its text."""
    if not path.name.startswith(COPIES):
        return path_content(path)
    text = base64.b64encode(path.name.removeprefix(COPIES).encode()).decode()
    found = (one for folder in folders for one in folder.rglob("*") if TRASH not in one.parents)
    return sorted(str(one) for one in found if one.is_file() and path_content(one) == text)


def path_content(path: Path) -> Any:
    """Return a file's bytes in base64, a folder's names, None if the path does not exist, or True for all else.

    Names that are no UTF-8 are replaced, as JSON has no such text.
    """
    try:
        if path.is_dir():
            with os.scandir(os.fsencode(path)) as entries:
                names = [entry.name.decode(errors="replace") for entry in itertools.islice(entries, NAMES + 1)]
            return sorted(names) if len(names) <= NAMES else True
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # A FIFO has no writer.
            content = file.read(CONTENT_BYTES + 1) if path.is_file() else None
        return True if content is None or len(content) > CONTENT_BYTES else base64.b64encode(content).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return True


def empty_folder(folder: Path) -> None:
    """Remove all that is in a folder, also below folders without permissions."""
    folder.chmod(folder.stat().st_mode | 0o700)
    for path, folders, _ in os.walk(folder):
        for inner in (Path(path, name) for name in folders):
            if not inner.is_symlink():
                inner.chmod(0o700)
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
