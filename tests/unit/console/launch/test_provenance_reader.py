"""The provenance of a start: the machine, versions and revision that the report names."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from console.launch import provenance_reader
from console.launch.provenance_reader import cpu_name, gpu_names, read_provenance, read_revision
from dart_streams.version import VERSION

PROGRAM = Path(sys.prefix) / "bin/dart-streams"


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.check_output(["git", *identity, *arguments], cwd=folder, text=True).strip()


def test_a_start_has_its_command_machine_and_versions_of_each_environment():
    start = read_provenance(["/x/bin/dart-streams", "run", "my file.toml"], PROGRAM)
    assert start.command == "dart-streams run 'my file.toml'"
    assert start.version == VERSION
    assert start.libraries["msgspec"] == importlib.metadata.version("msgspec")
    assert start.machine.cpu and start.machine.cores >= 1 and start.machine.memory_gib > 0
    folders = provenance_reader.package_folders(PROGRAM)
    assert provenance_reader.versions_in(folders, ["msgspec"]) == {"msgspec": importlib.metadata.version("msgspec")}
    assert provenance_reader.versions_in(provenance_reader.package_folders(Path("/no/bin/x")), ["msgspec"]) == {}


def test_a_revision_says_whether_there_are_uncommitted_changes(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(provenance_reader, "GIT_TIMEOUT_S", 120.0)
    assert read_revision(tmp_path) == ""
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    assert read_revision(tmp_path) == "", "no commit yet"
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    assert read_revision(tmp_path) == git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert read_revision(tmp_path) == git(tmp_path, "rev-parse", "HEAD") + "+"
    (tmp_path / "below").mkdir()
    assert read_revision(tmp_path / "below") == "", "a package in another project's checkout is none itself"


@pytest.mark.parametrize(
    ("text", "name"),
    [("processor: 0\nmodel name\t: Xeon @ 2.9GHz\nmodel name\t: Other\n", "Xeon @ 2.9GHz"), ("", None)],
)
def test_the_cpu_is_its_model_or_its_architecture(text, name):
    assert cpu_name(text) == (name or cpu_name("processor: 0"))
    assert cpu_name(text)


def test_gpus_have_name_and_memory(tmp_path: Path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho '0, GPU-a, 81559, NVIDIA H100 80GB HBM3'\necho '1, GPU-b, [N/A], NVIDIA X'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpu_names() == ["NVIDIA H100 80GB HBM3, 80 GiB", "NVIDIA X"]
