"""A forked program is a process as ``subprocess`` makes one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.fork_server import Forked

SHOW = """
import json, os, signal, sys, threading
given = {"argv": sys.argv[1:], "folder": os.getcwd(), "x": os.environ.get("X"), "parent": os.getppid()}
tasks = len(os.listdir("/proc/self/task"))
ignores = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
given |= {"tasks": tasks, "ignores": ignores, "path": sys.path[0], "read": sys.stdin.read()}
print(json.dumps(given), flush=True)
print("said", file=sys.stderr)
if "wait" in sys.argv:
    signal.pause()
sys.exit(7)
"""
BOUND_S = 300.0


def shown(folder: Path, *words: str, **options) -> Forked:
    (folder / "show.py").write_text(SHOW)
    command = [sys.executable, "-m", "show", *words]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return Forked(command, cwd=folder, text=True, **pipes, **options)


def test_a_forked_program_has_its_own_environment_folder_and_output(tmp_path: Path):
    with shown(tmp_path, "a", "b", env=os.environ | {"X": "1"}) as process:
        out, errors = process.communicate("in", timeout=BOUND_S)
    assert (process.returncode, errors) == (7, "said\n")
    given = {"argv": ["a", "b"], "folder": str(tmp_path), "x": "1", "parent": os.getpid(), "path": str(tmp_path)}
    assert json.loads(out) == given | {"tasks": 1, "ignores": False, "read": "in"}
    assert "X" not in os.environ


def test_a_forked_program_takes_signals_and_is_killed(tmp_path: Path):
    for number in (signal.SIGTERM, signal.SIGKILL):
        with shown(tmp_path, "wait", start_new_session=True) as process:
            process.stdin.close()
            process.stdout.readline()
            assert os.getsid(process.pid) == process.pid
            process.send_signal(signal.SIGSTOP)
            assert os.waitid(os.P_PID, process.pid, os.WSTOPPED).si_status == signal.SIGSTOP
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            assert process.wait(BOUND_S) == -number


def test_a_forked_program_is_none_of_the_others_and_takes_no_orphan(tmp_path: Path):
    with shown(tmp_path, "wait") as first, shown(tmp_path, "wait") as second:
        assert {first.pid, second.pid} <= {child.pid for child in psutil.Process().children()}
        first.kill()
        assert first.wait(BOUND_S) == -signal.SIGKILL
        second.stdin.close()
        assert json.loads(second.stdout.readline())["argv"] == ["wait"]
        second.kill()
    orphan = subprocess.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"], capture_output=True, check=True)
    left = psutil.Process(int(orphan.stdout))
    assert left.ppid() != os.getpid()
    left.kill()
