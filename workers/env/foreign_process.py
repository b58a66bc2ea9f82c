"""Processes that run foreign content, such as browsers: what they reach of this machine, and their session's priority.

As a program it confines itself by Landlock and seccomp, and then becomes the command that it was given. Neither needs
rights or name spaces, so both work in containers. What Landlock covers depends on the kernel (``man 7 landlock``).
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

OF_A_LOGIN = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "USER")
SYSTEM = (
    *("/usr", "/bin", "/lib", "/lib64", "/proc", "/sys/devices/system", "/dev/urandom", "/dev/random", "/dev/zero"),
    *(
        "/etc/fonts",
        "/var/cache/fontconfig",
        "/etc/ld.so.cache",
        "/etc/alternatives",
        "/etc/localtime",
        "/etc/chromium.d",
    ),
)
"""What each such process may read. Of other processes Landlock hides what a debugger would see, as their variables."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock, on each architecture."""
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of rights on files by version of Landlock; 16 from the fifth on."""
READ, READ_FILE, USE_DEVICE = 0b1101, 0b101, 0b110
"""Rights on a folder (execute, read files, list), on a file (without list), and on a device (read, write)."""
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER_MODE, DROP_CAPABILITY = 38, 22, 2, 24
"""Of prctl."""
ROOTS = frozenset(range(64)) - {23}
"""Capabilities that root's processes lose: all but that for priorities. With others they would read any process."""
CALLS = {"x86_64": (0xC000003E, 41, 42), "aarch64": (0xC00000B7, 198, 203)}
"""Audit number of an architecture, and its system calls socket and connect."""
IO_URING, X32 = (425, 426, 427), 0x40000000
"""Calls that would open sockets too, and the first one of x86-64's second list of calls."""
LOAD, EQUAL, AT_LEAST, RETURN, ALLOW, ERRNO = 0x20, 0x15, 0x35, 0x06, 0x7FFF0000, 0x00050000
"""Codes and results of a filter."""

libc = ctypes.CDLL(None, use_errno=True)


def login_variables(*further: str) -> dict[str, str]:
    """Return the environment variables of a login, and ``further`` ones, without this process's other secrets."""
    return {name: os.environ[name] for name in (*OF_A_LOGIN, *further) if name in os.environ}


def lower_session(pid: int, niceness: int) -> None:
    """Lower the priority of a process's session; with autogroups, a niceness counts only within it. Never raises."""
    with contextlib.suppress(OSError):  # It has ended already, or this is not permitted.
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def landlock_version() -> int:
    """Return the version of this kernel's Landlock, 0 or less without it."""
    return int(libc.syscall(CREATE_RULESET, None, 0, 1)) if sys.platform == "linux" else 0


def confine(command: Sequence[str], readable: Iterable[Path], folder: Path) -> list[str]:
    """Return a command that reads programs, fonts and ``readable`` alone, writes its ``folder``, and has no network."""
    given = json.dumps([str(folder), str(Path(command[0]).resolve().parent), *map(str, readable)])
    return [sys.executable, "-I", "-S", __file__, given, *command]


def forbid_files(readable: Iterable[str], folder: str) -> None:
    """Restrict this process and its children to these files and one writable folder; raise OSError if refused."""
    version = landlock_version()
    if version < 1:
        return
    rights = (1 << RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("=QQQ", rights, 0, 0b11 if version >= 6 else 0)  # no signal, no abstract socket
    rules = check(libc.syscall(CREATE_RULESET, attributes, len(attributes), 0))
    wanted = {path: READ if Path(path).is_dir() else READ_FILE for path in readable}
    for path, allowed in {**wanted, "/dev/null": USE_DEVICE, folder: rights}.items():
        with contextlib.suppress(FileNotFoundError):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            check(libc.syscall(ADD_RULE, rules, 1, struct.pack("=Qi", allowed, place), 0))
    check(libc.syscall(RESTRICT_SELF, rules, 0))


def network_filter(audit: int, open_socket: int, connect: int) -> bytes:
    """Return a filter of system calls that allows sockets of this machine alone, and connects none."""
    refused = [(EQUAL, 0, 1, number) for number in (connect, *IO_URING)]
    steps = [
        *((LOAD, 0, 0, 4), (EQUAL, 1, 0, audit), (RETURN, 0, 0, ERRNO | errno.ENOSYS)),
        *((LOAD, 0, 0, 0), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, ERRNO | errno.ENOSYS)),
        *(step for one in refused for step in (one, (RETURN, 0, 0, ERRNO | errno.EACCES))),
        *((EQUAL, 0, 3, open_socket), (LOAD, 0, 0, 16), (EQUAL, 1, 0, socket.AF_UNIX)),
        *((RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def forbid_network() -> None:
    """Refuse this process and its children each network; raise OSError if that is refused."""
    if calls := CALLS.get(platform.machine()):
        steps = ctypes.create_string_buffer(network_filter(*calls))
        program = ctypes.create_string_buffer(struct.pack("@HP", len(steps) // 8, ctypes.addressof(steps)))
        check(libc.prctl(SET_SECCOMP, FILTER_MODE, program, 0, 0))


def check(answer: int) -> int:
    """Return the answer of a system call; raise OSError for a failed one."""
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def main(given: str, *command: str) -> None:
    """Confine this process, and become the command."""
    folder, *readable = json.loads(given)
    os.environ.update(HOME=folder, TMPDIR=folder)
    for capability in ROOTS:
        libc.prctl(DROP_CAPABILITY, capability, 0, 0, 0)  # Others than root have none.
    check(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    forbid_files((*SYSTEM, *readable), folder)
    forbid_network()
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
