"""A matrix that is ended gives back its resources after those of its tests."""

import os
import signal
import subprocess
import sys

import pytest

from tests.sources import ROOT

TESTS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("tests run", flush=True)
signal.sigwait([signal.SIGINT])
again = signal.sigtimedwait([signal.SIGINT], 1)
print("tests were interrupted twice" if again else "tests gave back", flush=True)
"""
MATRIX = f"""
import contextlib, os, sys
from pathlib import Path
from tests.faults.orderly_end import run_to_its_end, unwind_at_sigterm
unwind_at_sigterm()
with contextlib.ExitStack() as held:
    held.callback(print, "matrix gave back", flush=True)
    sys.exit(run_to_its_end([sys.executable, "-c", {TESTS!r}], os.environ, Path()))
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)])
def test_what_is_held_is_given_back_from_the_inside_out(sent: signal.Signals, code: int):
    """Started as by a shell in the background, with SIGINT ignored; a terminal's Ctrl-C is sent to the whole group."""
    command = ["sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, MATRIX]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, process_group=0) as matrix:
        assert matrix.stdout
        assert matrix.stdout.readline() == "tests run\n"
        os.killpg(matrix.pid, sent)
        assert matrix.stdout.read() == "tests gave back\nmatrix gave back\n"
    assert matrix.returncode == code
