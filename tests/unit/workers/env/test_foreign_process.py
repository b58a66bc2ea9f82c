"""Processes that run foreign content: what they reach of this machine, and the priority of their sessions."""

import functools
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests import call_filters
from workers.env import foreign_process
from workers.env.backends.miniwob.browser import BrowserProcess

ATTEMPTS = """
import ctypes, json, os, resource, socket, sys
libc = ctypes.CDLL(None, use_errno=True)


def answered(answer):
    if answer < 0:
        raise OSError(ctypes.get_errno())


outside, pages, own, worker = sys.argv[1:]
path = own + "/socket"
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
attempts = {
    "read its pages": lambda: open(pages + "/page.html").read(),
    "write its own folder": lambda: open(os.environ["HOME"] + "/file", "w").write("1"),
    "read programs": lambda: os.listdir("/usr/bin"),
    "talk to its children": socket.socketpair,
    "read another file": lambda: open(outside).read(),
    "write its pages": lambda: open(pages + "/page.html", "w"),
    "truncate its pages": lambda: os.truncate(pages + "/page.html", 0),
    "list the temporary folder": lambda: os.listdir("/tmp"),
    "read the user's variables": lambda: open(f"/proc/{worker}/environ").read(),
    "read the worker's files": lambda: os.listdir(f"/proc/{worker}/root"),
    "end the worker": lambda: os.kill(int(worker), 0),
    "bound the worker": lambda: resource.prlimit(int(worker), resource.RLIMIT_CORE),
    "change a mode": lambda: os.chmod(outside, 0o666),
    "change a time": lambda: os.utime(outside),
    "leave its session": os.setsid,
    "share memory": lambda: answered(libc.shmget(0, 4096, 0o1600)),
    "open a TCP socket": socket.socket,
    "open a datagram socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
    "open a UDP socket": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "connect a local socket": lambda: socket.socket(socket.AF_UNIX).connect(path),
    "make a name space": lambda: answered(libc.unshare(0x10000000)),
}
succeeded = []
for name, attempt in attempts.items():
    try:
        attempt()
        succeeded.append(name)
    except OSError:
        pass
print(json.dumps(succeeded))
"""


@pytest.mark.skipif(foreign_process.confinement_gap() != "", reason=foreign_process.confinement_gap())
def test_a_confined_process_reaches_its_own_folder_and_its_pages_alone(tmp_path: Path, monkeypatch):
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/page.html").write_text("page")
    reached = []
    for name in ("confined", "free"):
        own = tmp_path / name
        own.mkdir()
        monkeypatch.setenv("HOME", str(own))
        places = (tmp_path / "outside", tmp_path / "pages", own, os.getpid())
        words = ["/usr/bin/python3", "-c", ATTEMPTS, *map(str, places)]
        command = foreign_process.confined_command(words, [tmp_path / "pages"], own) if name == "confined" else words
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=240)
        reached.append(json.loads(done.stdout))
    allowed = ("read its pages", "write its own folder", "read programs", "talk to its children")
    assert (reached[0], len({*reached[1]} - {"make a name space"})) == ([*allowed], 20)


@pytest.mark.parametrize("machine", foreign_process.CALLS)
def test_a_filter_knows_the_calls_of_its_machine(machine):
    audit, open_socket, open_pair, limit, calls = foreign_process.CALLS[machine]
    code = foreign_process.call_filter(*foreign_process.CALLS[machine])
    answer = functools.partial(call_filters.answer, code, audit)
    closing = socket.SOCK_STREAM | socket.SOCK_CLOEXEC
    for call in (open_socket, open_pair):
        assert answer(call, socket.AF_UNIX, closing) == answer(call, socket.AF_UNIX, socket.SOCK_SEQPACKET) == ""
        assert answer(call, socket.AF_UNIX, socket.SOCK_DGRAM) == answer(call, socket.AF_INET, 1) == "EAFNOSUPPORT"
    assert [answer(limit), answer(limit, 1), answer(0)] == ["", "EPERM", ""]
    assert {answer(number) for number in calls} == {"EPERM"}
    assert answer(foreign_process.X32 + open_socket) == call_filters.answer(code, 1, 0) == "ENOSYS"


def test_a_session_gives_way_to_the_others():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        foreign_process.lower_session(process.pid, 7)
        autogroup = Path(f"/proc/{process.pid}/autogroup")
        assert not autogroup.exists() or autogroup.read_text().endswith("nice 7\n")
    finally:
        process.kill()
        process.wait()


def test_a_session_that_has_ended_is_no_error():
    process = subprocess.Popen(["true"])
    process.wait()
    foreign_process.lower_session(process.pid, 7)


def test_the_group_of_an_ended_process_is_killed_only_until_that_is_reaped(monkeypatch):
    """Its id is then free for another process, and for that one's group."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *arguments: killed.append(arguments))
    process = BrowserProcess(["sh", "-c", "exit 3"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.poll() == process.poll() == 3
    foreign_process.kill_group(process.pid)
    assert process.wait() == 3
    foreign_process.kill_group(process.pid)
    assert killed == [(process.pid, signal.SIGKILL)]
