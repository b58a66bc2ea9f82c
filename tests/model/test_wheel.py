"""Every verb starts from the wheel with the packages of the model side, as in its image."""

import json
import subprocess
from pathlib import Path

from tests.installed_wheel import ROOT, build_wheel, install_wheel


def test_every_verb_starts_from_the_wheel_alone(tmp_path: Path):
    python = install_wheel(build_wheel(tmp_path), tmp_path / "venv")
    command = [python, "-P", ROOT / "tests/verbs.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
