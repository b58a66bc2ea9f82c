"""Processes that run foreign content: what they reach of this machine, and the priority of their sessions."""

import errno
import json
import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from workers.env import foreign_process

ATTEMPTS = """
import json, os, socket, sys
outside, pages, own, worker = sys.argv[1:]
path = own + "/socket"
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
attempts = {
    "read its pages": lambda: open(pages + "/page.html").read(),
    "list its pages": lambda: os.listdir(pages),
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
    "open a TCP socket": socket.socket,
    "open a UDP socket": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "connect a local socket": lambda: socket.socket(socket.AF_UNIX).connect(path),
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


@pytest.mark.skipif(foreign_process.landlock_version() < 6, reason="this kernel's Landlock does not cover all of it")
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
        command = foreign_process.confine(words, [tmp_path / "pages"], own) if name == "confined" else words
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=240)
        reached.append(json.loads(done.stdout))
    allowed = ("read its pages", "list its pages", "write its own folder", "read programs", "talk to its children")
    assert (reached[0], len(reached[1])) == ([*allowed], 15)


@pytest.mark.parametrize("machine", foreign_process.CALLS)
def test_a_filter_knows_the_calls_of_its_machine(machine):
    """The filter is run as the kernel runs it, for calls that this machine does not have."""
    audit, open_socket, connect = foreign_process.CALLS[machine]
    steps = [*struct.iter_unpack("=HBBI", foreign_process.network_filter(*foreign_process.CALLS[machine]))]

    def answer(number: int, first: int = 0, of: int = audit) -> int:
        call, value, place = {0: number, 4: of, 16: first}, 0, 0
        while True:
            code, if_true, if_false, given = steps[place]
            if code == foreign_process.RETURN:
                return given
            value = call[given] if code == foreign_process.LOAD else value
            holds = value == given if code == foreign_process.EQUAL else value >= given
            place += 1 if code == foreign_process.LOAD else 1 + (if_true if holds else if_false)

    refused = {name: foreign_process.ERRNO | getattr(errno, name) for name in ("ENOSYS", "EACCES", "EAFNOSUPPORT")}
    assert [answer(open_socket, socket.AF_UNIX), answer(0), answer(connect + 1)] == 3 * [foreign_process.ALLOW]
    assert answer(open_socket, socket.AF_INET) == answer(open_socket, socket.AF_NETLINK) == refused["EAFNOSUPPORT"]
    assert {answer(number) for number in (connect, *foreign_process.IO_URING)} == {refused["EACCES"]}
    assert answer(foreign_process.X32 + open_socket) == answer(0, of=1) == refused["ENOSYS"]


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
