"""A coroutine that is never awaited fails its test: Python itself only warns."""

import subprocess
import sys
from pathlib import Path

SETTINGS = Path(__file__).parents[2] / "pyproject.toml"
TESTS = """
import gc
async def work(): ...
def test_forgotten():
    work()
    gc.collect()
def test_closed():
    work().close()
    gc.collect()
"""


def test_a_coroutine_that_is_never_awaited_fails_its_test(tmp_path):
    written = tmp_path / "test_written.py"
    written.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", SETTINGS, "--rootdir", tmp_path, written]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert "test_written.py::test_forgotten" in run.stdout and "was never awaited" in run.stdout, run.stdout
    assert "1 failed, 1 passed" in run.stdout, run.stdout
