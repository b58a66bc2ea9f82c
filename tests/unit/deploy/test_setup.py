"""`make setup` installs the model environment for NVIDIA GPUs or for a CPU, and again when that changes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

FUNCTIONS = (ROOT / "deploy/local/setup.sh").read_text().partition("\nbegan=$(now)\n")[0]
CHOICES = """
has_gpu() { [ "$DEVICES" = 1 ]; }
choose_gpu
echo "$GPU"
"""
INSTALLS = f"""
PYTHON={sys.executable}
synced() {{ mkdir -p "$1/bin"; ln -sf "$PYTHON" "$1/bin/python"; echo "installs $2"; }}
quietly() {{ :; }}
GPU=$GPU model_environment
echo "$outcome"
"""


def run(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script after the functions of setup.sh, which believes to lie in ``folder``."""
    (folder / ".venv").mkdir(exist_ok=True)
    program = f"{FUNCTIONS}\noutcome='up to date'\n{script}"
    command = ["bash", "-c", program, str(folder / "deploy/local/setup.sh")]
    (folder / "deploy/local").mkdir(parents=True, exist_ok=True)
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(
    ("given", "devices", "chosen"),
    [("", "1", "1"), ("", "0", "0"), ("1", "0", "1"), ("0", "1", "0"), ("auto", "1", "1")],
)
def test_a_choice_wins_over_what_the_machine_has(tmp_path, given, devices, chosen):
    assert run(tmp_path, CHOICES, GPU=given, DEVICES=devices).stdout.split() == [chosen]


def test_a_choice_is_kept_until_it_is_taken_back_and_others_are_refused(tmp_path):
    for given, chosen in (("1", "1"), ("", "1"), ("auto", "0"), ("", "0")):
        assert run(tmp_path, CHOICES, GPU=given, DEVICES="0").stdout.split() == [chosen]
    refused = run(tmp_path, CHOICES, GPU="yes", DEVICES="0")
    assert refused.returncode == 2
    assert "GPU=yes: use 1" in refused.stderr


def test_changing_between_gpu_and_cpu_installs_again(tmp_path):
    for name in ("requirements/model.txt", "requirements/model-gpu.txt", "pyproject.toml", "plugins/x/pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    shown = [run(tmp_path, INSTALLS, GPU=gpu).stdout.splitlines() for gpu in ("0", "0", "1", "1", "0")]
    cpu, gpu = ["installs requirements/model.txt", "made"], ["installs requirements/model-gpu.txt", "made"]
    assert shown == [cpu, ["up to date"], gpu, ["up to date"], cpu]


def test_make_passes_the_choice_on(tmp_path):
    script = tmp_path / "deploy/local/setup.sh"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\necho chosen $GPU\n")
    script.chmod(0o755)
    command = ["make", "-f", str(ROOT / "Makefile"), "setup", "GPU=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "chosen 1" in done.stdout
