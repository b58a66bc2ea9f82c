"""The script that starts the panel, run by a shell with programs that stand for tint2 and wmctrl."""

import os
import subprocess
from pathlib import Path

import pytest

from dart_desktops.osworld import panel


def run_script(home: Path, **programs: str) -> int:
    folder = home / "bin"
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    environment = {"HOME": str(home), "PATH": f"{folder}:{os.defpath}"}
    script = panel.start_script(1920, 1080)
    return subprocess.run(["sh", "-c", script], env=environment, timeout=60, check=False).returncode


def test_the_dock_offers_the_applications_that_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "there.png").touch()
    there = panel.DockIcon("There", "there --new", str(tmp_path / "there.png"))
    absent = panel.DockIcon("Absent", "absent", str(tmp_path / "absent.png"))
    monkeypatch.setattr(panel, "ICONS", (there, absent))
    assert run_script(tmp_path, tint2="", wmctrl="printf 'tint2.Tint2\\ntint2.Tint2\\n'") == 0
    folder = tmp_path / ".config/tint2"
    dock = (folder / "dock").read_text().splitlines()
    assert [line for line in dock if "launcher_item_app" in line] == [f"launcher_item_app = {folder}/There.desktop"]
    assert "panel_size = 1053 68" in dock
    assert "Exec=there --new" in (folder / "There.desktop").read_text().splitlines()
    assert "panel_size = 1920 27" in (folder / "bar").read_text().splitlines()


def test_a_panel_that_does_not_come_up_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(panel, "UP_POLLS", 2)
    assert run_script(tmp_path, tint2="", wmctrl="echo tint2.Tint2") == 1
