"""Placeholders of archives, with the files that the task finds after it has unpacked them."""

import gzip
import io
import lzma
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from dart_desktops.osworld.placeholders import documents, pictures, profiles, programs
from dart_desktops.osworld.placeholders.request import FileRequest

NOTES = "notes.txt"
MAIL = "thunderbird"
Writer = Callable[[Path, FileRequest], None]
SINGLE: dict[str, Writer] = {**documents.WRITERS, **pictures.WRITERS, **programs.WRITERS, **profiles.WRITERS}
"""Writers of all kinds but archives."""


def fill_folder(folder: Path, request: FileRequest) -> None:
    """Write an archive's members: files of known kinds, and folders with a text."""
    if MAIL in Path(request.path).name:
        profiles.fill_mail_profile(folder, request)
        return
    for member in request.members or (Path(request.path).name.partition(".")[0],):
        target = folder / member
        if (write := SINGLE.get(target.suffix.lower())) is None:
            target, write = target / NOTES, documents.write_text
        target.parent.mkdir(parents=True, exist_ok=True)
        write(target, request._replace(path=str(target), kind=target.suffix.lower(), members=()))


def list_files(folder: Path) -> list[tuple[Path, str]]:
    """Return the files of a folder with their names in the archive, in order."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path, str(PurePosixPath(path.relative_to(folder)))) for path in files]


def write_zip(path: Path, request: FileRequest) -> None:
    """Write a ZIP archive."""
    with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(path, "w") as archive:
        fill_folder(Path(name), request)
        for file, place in list_files(Path(name)):
            archive.write(file, place)


def write_tar(path: Path, request: FileRequest) -> None:
    """Write a compressed tar archive."""
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as name, tarfile.open(fileobj=packed, mode="w") as archive:
        fill_folder(Path(name), request)
        for file, place in list_files(Path(name)):
            archive.add(file, place, filter=owned_by_user)
    compress = lzma.compress if request.kind == ".xz" else gzip.compress
    path.write_bytes(compress(packed.getvalue()))


def owned_by_user(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member as a file of the desktop's user."""
    member.uid = member.gid = 1000
    member.uname = member.gname = "user"
    return member


WRITERS: dict[str, Writer] = {**SINGLE, ".zip": write_zip, ".gz": write_tar, ".xz": write_tar}
