"""Mirror folder of the published files that tasks need. A clone of OSWorld's dataset is such a folder.

Nothing is downloaded here.
"""

import hashlib
import re
import uuid
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

import msgspec

from dart_desktops.osworld.steps import UpdateBrowseHistory
from dart_desktops.osworld.tasks import OsworldTask
from dart_streams import fsync
from dart_streams.config.text import json_of
from dart_streams.errors import ConfigError
from workers.env.environment import EnvironmentFault

DATASET = "xlangai/ubuntu_osworld_file_cache"
"""Dataset whose files have their own paths in the mirror; files of other datasets and sites are in two folders."""
EMPTY_HISTORY = (
    f"https://huggingface.co/datasets/{DATASET}/resolve/main/chrome/44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/"
    "history_empty.sqlite"
)
"""Browser history to which ``update_browse_history`` adds visits."""
DATASET_FILE = re.compile(r"/datasets/(?P<name>[^/]+/[^/]+)/resolve/[^/]+/(?P<path>.+)")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""Prefix of the files that a clone without Git LFS has instead of the real ones."""
LONGEST_NAME = 255
"""Maximum length of a file name in bytes."""
NUL = "\0"
RECORD = "mirror.json"
FileState = Literal["present", "missing", "changed", "pointer"]


class FileDigest(msgspec.Struct, frozen=True):
    """Digest of a file when it was first seen in the mirror; ``made`` if it is a placeholder."""

    sha256: str
    size: int
    made: bool = False


class MirrorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file that tasks need: its URL, its path in the mirror, and its state."""

    url: str
    path: str
    state: FileState
    pages: tuple[str, ...]
    sha256: str = ""
    size: int = 0
    made: bool = False


class Mirror:
    """A mirror folder, with a record of its files' digests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, url: str) -> Path | None:
        """Return the path of a URL's file, None if it is missing."""
        path = self.folder / mirror_path(url)
        return path if path.is_file() and not is_pointer(path) else None

    def read(self, url: str) -> bytes:
        """Return the bytes of a URL's file; raise EnvironmentFault if it is missing."""
        path = self.find(url)
        if path is None:
            raise EnvironmentFault(f"{url} is not in the mirror {self.folder}: see `dart-streams osworld mirror`")
        return path.read_bytes()

    def recorded(self) -> dict[str, FileDigest]:
        """Return the recorded digests by path; raise ConfigError if the record cannot be read."""
        path = self.folder / RECORD
        if not path.exists():
            return {}
        try:
            return json_of(path.read_bytes(), str(path), dict[str, FileDigest])
        except ConfigError as error:
            raise ConfigError(f"{error}; or remove it, and it is made again") from None

    def record(self, digests: dict[str, FileDigest]) -> None:
        """Replace the recorded digests."""
        content = msgspec.json.format(msgspec.json.encode(dict(sorted(digests.items()))), indent=1)
        partial = self.folder / f"{RECORD}.partial"
        fsync.write(partial, content + b"\n")
        partial.replace(self.folder / RECORD)

    def is_made_for(self, task: OsworldTask) -> bool:
        """Return whether a file that a task needs is a placeholder."""
        recorded = self.recorded()
        return any((known := recorded.get(mirror_path(url))) is not None and known.made for url in needed_urls(task))

    def survey(self, tasks: Iterable[OsworldTask]) -> list[MirrorEntry]:
        """Return the files that tasks need, and record new ones.

        A changed file is reported until its entry is removed from the record.
        """
        pages: dict[str, list[str]] = {}
        for task in tasks:
            for url in needed_urls(task):
                pages.setdefault(url, []).append(task.page)
        recorded = self.recorded()
        digests = dict(recorded)
        entries = [self._entry(url, tuple(pages[url]), digests) for url in sorted(pages, key=mirror_path)]
        if digests != recorded:
            self.record(digests)
        return entries

    def _entry(self, url: str, pages: tuple[str, ...], digests: dict[str, FileDigest]) -> MirrorEntry:
        place = mirror_path(url)
        path = self.folder / place
        if not path.is_file() or is_pointer(path):
            state: FileState = "pointer" if path.is_file() else "missing"
            return MirrorEntry(url=url, path=place, state=state, pages=pages)
        sha256, size = hash_file(path), path.stat().st_size
        known = digests.setdefault(place, FileDigest(sha256, size))
        state = "present" if known.sha256 == sha256 else "changed"
        return MirrorEntry(url=url, path=place, state=state, pages=pages, sha256=sha256, size=size, made=known.made)


def needed_urls(task: OsworldTask) -> list[str]:
    """Return the URLs of all files of a task."""
    history = any(isinstance(step, UpdateBrowseHistory) for step in task.steps())
    return [*task.urls(), *([EMPTY_HISTORY] if history else [])]


def mirror_path(url: str) -> str:
    """Return the path of a URL's file in a mirror, which is inside the mirror for any URL."""
    path = urlsplit(url).path
    if match := DATASET_FILE.fullmatch(path):
        inside = PurePosixPath(unquote(match["path"]))
        valid = NUL not in str(inside) and all(len(part.encode()) <= LONGEST_NAME for part in inside.parts)
        if valid and ".." not in inside.parts and not inside.is_absolute():
            return str(inside) if match["name"] == DATASET else f"datasets/{match['name']}/{inside}"
    name = PurePosixPath(unquote(path)).name.replace("..", "_").encode()[-LONGEST_NAME:].decode(errors="ignore")
    return f"by-url/{uuid.uuid5(uuid.NAMESPACE_URL, url)}/{name.replace(NUL, '_') or 'index'}"


def is_pointer(path: Path) -> bool:
    """Return whether a file is Git LFS's pointer to the real one."""
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
