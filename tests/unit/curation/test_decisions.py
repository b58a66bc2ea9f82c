"""Decisions have the same bytes on every supported Python, and need no arithmetic that a platform decides."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

PYTHONS = sorted(folder / "bin/python" for folder in (ROOT / ".venv").glob("python3.*"))
DECIDING = [
    *(ROOT / "dart_streams/curation").rglob("*.py"),
    *(file for name in ("rules", "model", "graph") for file in ROOT.glob(f"plugins/recipes/dart_recipes/*/{name}.py")),
]
NOT_FIXED = {
    "cos",
    "dist",
    "exp",
    "exp2",
    "expm1",
    "hypot",
    "log",
    "log10",
    "log1p",
    "log2",
    "pow",
    "sin",
    "sumprod",
    "tanh",
}


def decisions(python: Path | str) -> str:
    """Return the digests of the decisions that a Python makes."""
    command = [python, "-m", "tests.unit.curation.decisions"]
    return subprocess.run(command, cwd=ROOT, env=os.environ, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(not PYTHONS, reason="`deploy/local/setup.sh pythons` found no other Python")
def test_decisions_have_the_same_bytes_on_every_python():
    own = decisions(sys.executable)
    assert '"equal": "False"' not in own and own.count('"equal"') == 2
    assert [python for python in PYTHONS if decisions(python) != own] == []


@pytest.mark.parametrize("file", DECIDING, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_decision_takes_powers_and_logarithms_from_portable_math(file: Path):
    tree = ast.parse(file.read_text())
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert {ast.unparse(call) for call in calls}.isdisjoint(f"math.{name}" for name in NOT_FIXED)
    powers = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)]
    assert [ast.unparse(node) for node in powers if not isinstance(node.left, ast.Constant)] == []
