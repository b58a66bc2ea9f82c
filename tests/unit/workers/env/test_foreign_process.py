"""Processes that run foreign content: their variables, and the priority of their sessions."""

import subprocess
from pathlib import Path

from workers.env.foreign_process import lower_session


def test_a_session_gives_way_to_the_others():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        lower_session(process.pid, 7)
        autogroup = Path(f"/proc/{process.pid}/autogroup")
        assert not autogroup.exists() or autogroup.read_text().endswith("nice 7\n")
    finally:
        process.kill()
        process.wait()


def test_a_session_that_has_ended_is_no_error():
    process = subprocess.Popen(["true"])
    process.wait()
    lower_session(process.pid, 7)
