"""A file system without room for another file says so, however many bytes are free."""

import os
from pathlib import Path

import pytest

from console.cli import doctor_checks
from console.launch.services.lock import one_at_a_time
from dart_streams.config import Config, Run
from dart_streams.disk_room import DiskRoom, room_at
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
