"""The wheels of the project and its plug-ins in an environment of its own, as an image has it: without the checkout."""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.sources import CORE, ROOT

UV = ROOT / ".venv/tools/bin/uv"
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", *CORE, "plugins")
"""What the Dockerfiles copy."""


def build_wheels(folder: Path) -> list[Path]:
    """Build the wheels from a copy of the sources, with the setuptools of this environment; the project's is first."""
    source = folder / "source"
    source.mkdir()
    for name in BUILT_FROM:
        path, copied = ROOT / name, source / name
        ignored = shutil.ignore_patterns("__pycache__", "tests", "*.egg-info", "build")
        shutil.copytree(path, copied, ignore=ignored) if path.is_dir() else shutil.copy(path, copied.parent)
    for project in (source, *sorted(source.glob("plugins/*"))):
        uv("build", "--wheel", "--offline", "--no-build-isolation", "--python", sys.executable, "-o", folder, project)
    return sorted(folder.glob("*.whl"), key=lambda wheel: not wheel.name.startswith("dart_streams"))


def install_wheels(wheels: list[Path], folder: Path) -> Path:
    """Install wheels beside this environment's pinned packages, without its editable ones; return the Python."""
    uv("venv", "--python", sys.executable, folder)
    packages = next(folder.glob("lib/python3*/site-packages"))
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("dart_", "__editable__", "_virtualenv", "__pycache__")):
            (packages / path.name).symlink_to(path)
    uv("pip", "install", "--offline", "--no-deps", "--python", folder / "bin/python", *wheels)
    return folder / "bin/python"


def failed_verbs(python: Path, folder: Path) -> dict[str, str]:
    """Start every verb in a folder, and return what each failed one said."""
    command = [python, "-P", ROOT / "tests/verbs.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def uv(*arguments: object) -> None:
    """Run uv; fail with what it prints."""
    done = subprocess.run([UV, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
