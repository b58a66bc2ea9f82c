"""Sockets of local processes have paths that the kernel takes, whatever TMPDIR is."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from dart_streams import socket_folder as module
from dart_streams.errors import ServiceUnavailable
from dart_streams.socket_folder import LONGEST_PATH, ROOM, socket_folder


@pytest.fixture
def of_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make TMPDIR a folder whose path has this many bytes."""
    short = Path(tempfile.mkdtemp(dir="/tmp"))

    def make(length: int, letter: str = "x") -> Path:
        wide = len(letter.encode())
        folder = short / (letter * ((length - len(str(short)) - 1) // wide)) if length > len(str(short)) else short
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder

    yield make
    for folder in (*short.iterdir(), short):
        folder.rmdir()


@pytest.mark.parametrize(
    "length, letter", [(20, "x"), (43, "x"), (44, "x"), (106, "x"), (108, "x"), (200, "x"), (60, "é")]
)
def test_a_socket_of_the_longest_name_can_be_bound(of_length, length: int, letter: str):
    wanted = of_length(length, letter)
    folder = socket_folder()
    assert (folder == wanted) == (len(os.fsencode(wanted)) + ROOM <= LONGEST_PATH)
    with (
        tempfile.TemporaryDirectory(prefix="p" * (ROOM - 16), dir=folder) as made,
        socket.socket(socket.AF_UNIX) as bound,
    ):
        bound.bind(f"{made}/http")


def test_a_machine_without_a_short_folder_says_what_to_set(of_length, monkeypatch: pytest.MonkeyPatch):
    of_length(106)
    monkeypatch.setattr(module, "OTHERS", ("/nowhere",))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(ServiceUnavailable, match=r"TMPDIR is /tmp/.*may have 43 bytes: set another one"):
        socket_folder()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    assert socket_folder() == Path("/tmp")
