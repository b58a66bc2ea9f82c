"""A file system without room for another file says so, however many bytes are free."""

import errno
import os
from pathlib import Path

import pytest

from console.cli import doctor_checks
from console.launch.services.lock import one_at_a_time
from dart_streams.config import Config, Run
from dart_streams.disk_room import DiskRoom, refusal_of, remedy_of, room_at
from dart_streams.telemetry import exporters


def test_room_is_that_of_the_file_system(tmp_path: Path):
    found = room_at(tmp_path)
    assert 0 < found.bytes <= os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize


@pytest.mark.parametrize(
    "room, said",
    [
        (DiskRoom(5_000_000, 0), "5 MB but only 0 files (inodes) are free"),
        (DiskRoom(5_000_000, 20_000), "5 MB are free"),
        (DiskRoom(5_000_000, None), "5 MB are free"),
    ],
)
def test_what_has_run_out_is_said(room: DiskRoom, said: str):
    assert str(room) == said


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "MB are free at {0}: make room there"),
        (errno.EDQUOT, "{0}: remove files of this user there, or get a larger quota"),
        (errno.EROFS, "{0}: mount its file system writable, or choose another place"),
        *((number, "{0}: choose another place, or get the rights") for number in (errno.EACCES, errno.EPERM)),
        (errno.EIO, "MB are free at {0}: make room there if it is full"),
    ],
)
def test_an_error_of_writing_names_its_own_folder_and_remedy(tmp_path: Path, number: int, remedy: str):
    there, error = tmp_path / "there", OSError(number, os.strerror(number), str(tmp_path / "there/file"))
    said = remedy_of(f"rank 1: OSError: {error}", tmp_path / "other")
    assert said.endswith(remedy.format(there))
    assert ("are free" in said) == ("are free" in remedy)
    copied = OSError(number, os.strerror(number), "/source/file", None, str(there / "file"))
    assert remedy_of(str(copied), tmp_path).endswith(remedy.format(there))
    assert remedy_of(f"{OSError(number, os.strerror(number))}", there).endswith(remedy.format(there))
    if number != errno.EIO:
        assert f"{there}/file can't be written: {os.strerror(number)}; " in str(refusal_of(error, tmp_path / "other"))
        assert str(refusal_of(error, there)) == str(refusal_of(copied, there))
        assert str(refusal_of(copied, there)).startswith(f"{there} can't be written")


def test_an_error_without_a_number_says_the_room_of_the_nearest_folder(tmp_path: Path):
    missing = tmp_path / "not/yet"
    assert (
        remedy_of("PytorchStreamWriter failed", missing)
        == f"{room_at(tmp_path)} at {missing}: make room there if it is full"
    )


def test_doctor_fails_where_no_file_can_be_made_though_bytes_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor_checks, "room_at", lambda _: DiskRoom(2**40, 3))
    found = doctor_checks.check_disk(Config(run=Run(state_dir=str(tmp_path))))
    assert (found.status, "only 3 files (inodes)" in found.found) == ("fail", True)


def test_folders_of_runs_are_private_and_doctor_names_an_open_one(tmp_path: Path):
    state = tmp_path / "state"
    with one_at_a_time(state / "services", 60.0):
        assert {state.stat().st_mode & 0o777, (state / "services").stat().st_mode & 0o777} == {0o700}
    exporters.append(state / "runs/r/metrics/env.jsonl", [{}])
    assert (state / "runs").stat().st_mode & 0o777 == 0o700
    config = Config(run=Run(state_dir=str(state)))
    assert "other users" not in doctor_checks.check_disk(config).found
    for folder in (state, state / "runs"):
        folder.chmod(0o755)
    found = doctor_checks.check_disk(config)
    assert (found.status, found.advice) == ("warn", f"chmod 700 {state}")
