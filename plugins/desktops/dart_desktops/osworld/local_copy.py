"""Takes files from a local copy of OSWorld's data set into a mirror."""

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from dart_desktops.osworld.mirror import (
    RECORD,
    FileDigest,
    Mirror,
    hash_file,
    is_pointer,
    mirror_path,
    needed_urls,
)
from dart_desktops.osworld.tasks import OsworldTask
from dart_streams.errors import UserError

Outcome = Literal["taken", "absent", "pointer", "ambiguous", "changed"]


class CopiedFile(msgspec.Struct, frozen=True):
    """A file that tasks need, and what became of it.

    ``pointer``: the copy has Git LFS's pointer only. ``ambiguous``: it has several files of that name. ``changed``: the
    file has another digest than the recorded one.
    """

    url: str
    path: str
    outcome: Outcome


class LocalCopy:
    """A folder with files of the data set, at the data set's paths below any folder, or by their names alone."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UserError(f"--from {folder}: no such folder")
        self.folder = folder
        self.digests = Mirror(folder).recorded()
        self._by_name: dict[str, list[Path]] = {}
        for parent, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if name != ".git")
            for name in names:
                if name != RECORD:
                    self._by_name.setdefault(name, []).append(Path(parent) / name)

    def find(self, place: str) -> Path | Outcome:
        """Return the file for a path of a mirror, or why there is none."""
        parts = PurePosixPath(place).parts
        named = self._by_name.get(parts[-1], [])
        at_path = [path for path in named if path.parts[-len(parts) :] == parts]
        found = [path for path in at_path or named if path.is_file()]
        files = [path for path in found if not is_pointer(path)]
        if not files:
            return "pointer" if found else "absent"
        if len(files) > 1 and len({hash_file(path) for path in files}) > 1:
            return "ambiguous"
        return files[0]

    def recorded(self, path: Path) -> FileDigest | None:
        """Return the digest that the copy's own record has of a file; a copy may be another mirror."""
        return self.digests.get(str(path.relative_to(self.folder)))


def take_files(mirror: Mirror, tasks: Iterable[OsworldTask], copy: LocalCopy, link: bool) -> list[CopiedFile]:
    """Take the tasks' files that the mirror lacks, or has as placeholders only; return what became of each.

    With ``link`` files are hard links where the file system allows that.
    """
    digests = mirror.recorded()
    places = {mirror_path(url): url for task in tasks for url in needed_urls(task)}
    taken: list[CopiedFile] = []
    try:
        for place, url in sorted(places.items()):
            known = digests.get(place)
            if mirror.find(url) is not None and (known is None or not known.made):
                continue
            outcome, digest = take_file(mirror.folder / place, copy, place, known, link)
            if digest is not None:
                digests[place] = digest
            taken.append(CopiedFile(url, place, outcome))
    finally:
        mirror.record(digests)
    return taken


def take_file(
    target: Path, copy: LocalCopy, place: str, known: FileDigest | None, link: bool
) -> tuple[Outcome, FileDigest | None]:
    """Put one file into the mirror, whole or not at all; return the outcome and its digest."""
    source = copy.find(place)
    if not isinstance(source, Path):
        return source, None
    claimed = copy.recorded(source)
    made = claimed is not None and claimed.made
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name("partial")
    partial.unlink(missing_ok=True)
    put_file(source, partial, link)
    digest = FileDigest(hash_file(partial), partial.stat().st_size, made)
    replaced = known is not None and known.made
    if any(record and record.sha256 != digest.sha256 for record in (None if replaced else known, claimed)):
        partial.unlink()
        return "changed", None
    partial.replace(target)
    return "taken", digest


def put_file(source: Path, target: Path, link: bool) -> None:
    """Copy a file, or make a hard link to it if that is possible."""
    if link:
        with contextlib.suppress(OSError):
            os.link(source.resolve(), target)
            return
    shutil.copyfile(source, target)
