"""Processes that run foreign content, such as browsers: what they reach of this machine, and their sessions.

As a program it confines itself by Landlock and seccomp, and then becomes the command that it was given. Neither needs
rights or name spaces, so both work in containers. What Landlock covers depends on the kernel (``man 7 landlock``).
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Sequence, Set
from pathlib import Path

OF_A_LOGIN = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "USER")
SYSTEM = (
    *("/usr", "/bin", "/lib", "/lib64", "/proc", "/sys/devices/system", "/dev/urandom", "/dev/random", "/dev/zero"),
    *("/etc/fonts", "/var/cache/fontconfig", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"),
)
"""What each such process may read. Of other processes Landlock hides what a debugger would see, as their variables."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock, on each architecture."""
WHOLE = 6
"""Version of Landlock from which on signals and abstract sockets are refused too."""
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of rights on files by version of Landlock; 16 from the fifth on."""
READ, READ_FILE, USE_DEVICE = 0b1101, 0b101, 0b110
"""Rights on a folder (execute, read files, list), on a file (without list), and on a device (read, write)."""
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER_MODE, AMBIENT, CLEAR_ALL = 38, 22, 2, 47, 4
"""Of prctl."""
NICE = 1 << 23
"""The only capability that root keeps: Chromium changes priorities. With others it would read any process."""
BOTH = {*range(425, 428), 452}
"""Refused on each architecture: io_uring, which opens sockets too, and fchmodat2."""
CALLS = {
    "x86_64": (0xC000003E, 41, 53, 302, BOTH | {*range(29, 32), 42, *range(64, 67), *range(68, 72), 76}
        | {*range(90, 95), 109, 112, 132, 142, 144, *range(188, 191), *range(197, 200), 203, 220, 235, 240}
        | {*range(248, 252), 260, 261, 268, 272, 280, 298, 308, 314, 321, 323}),
    "aarch64": (0xC00000B7, 198, 199, 261, BOTH | {5, 6, 7, 14, 15, 16, 30, 45, *range(52, 56), 88, 97, 118, 119}
        | {122, 154, 157, 180, *range(186, 198), 203, *range(217, 220), 241, 268, 274, 280, 282}),
}  # fmt: skip
"""Audit number of an architecture, its calls socket, socketpair and prlimit64, and those that are refused.

Landlock leaves these open: connections, owners, modes, times and attributes of files, truncation by path, sessions,
scheduling, memory and queues of System V, queues of messages, keyrings, name spaces, bpf, perf and userfaultfd."""
X32 = 0x40000000
"""The first of x86-64's second list of calls."""
LOAD, EQUAL, AT_LEAST, AND, RETURN, ALLOW, ERRNO = 0x20, 0x15, 0x35, 0x54, 0x06, 0x7FFF0000, 0x00050000
"""Codes and results of a filter."""
Step = tuple[int, int, int, int]
"""Of a filter: its code, how many steps are skipped if it holds and if it does not, and its value."""

libc = ctypes.CDLL(None, use_errno=True)


def login_variables(*further: str) -> dict[str, str]:
    """Return the environment variables of a login, and ``further`` ones, without this process's other secrets."""
    return {name: os.environ[name] for name in (*OF_A_LOGIN, *further) if name in os.environ}


def lower_session(pid: int, niceness: int) -> None:
    """Lower the priority of a process's session; with autogroups, a niceness counts only within it. Never raises."""
    with contextlib.suppress(OSError):  # It has ended already, or this is not permitted.
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="utf-8")


def kill_group(child: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal the process group of a child of this process, unless the child was reaped: its id may be another's."""
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(child, number)


def landlock_version() -> int:
    """Return the version of this kernel's Landlock, 0 or less without it."""
    return int(libc.syscall(CREATE_RULESET, None, 0, 1)) if sys.platform == "linux" else 0


def confinement_gap() -> str:
    """Return what keeps this machine from confining a process wholly, empty if nothing does."""
    if platform.machine() not in CALLS:
        return f"no system calls are refused on {platform.machine()}"
    version = max(0, landlock_version())
    return "" if version >= WHOLE else f"this kernel has version {version} of Landlock, of {WHOLE} (Linux 6.12)"


def confined_command(command: Sequence[str], readable: Iterable[Path], folder: Path) -> list[str]:
    """Return a command that reads programs, fonts and ``readable`` alone, writes its ``folder``, and has no network."""
    if sys.platform != "linux":
        return [*command]
    given = json.dumps([str(folder), str(Path(command[0]).resolve().parent), *map(str, readable)])
    return [sys.executable, "-I", "-S", __file__, given, *command]


def forbid_files(readable: Iterable[str], folder: str) -> None:
    """Restrict this process and its children to these files and one writable folder; raise OSError if refused."""
    version = landlock_version()
    if version < 1:
        return
    rights = (1 << RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("=QQQ", rights, 0, 0b11 if version >= WHOLE else 0)  # no signal, no abstract socket
    rules = check(libc.syscall(CREATE_RULESET, attributes, len(attributes), 0))
    wanted = {path: READ if Path(path).is_dir() else READ_FILE for path in readable}
    for path, allowed in {**wanted, "/dev/null": USE_DEVICE, folder: rights}.items():
        with contextlib.suppress(FileNotFoundError):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            check(libc.syscall(ADD_RULE, rules, 1, struct.pack("=Qi", allowed, place), 0))
    check(libc.syscall(RESTRICT_SELF, rules, 0))


def own_calls(audit: int) -> list[Step]:
    """Return the begin of a filter, which refuses calls of other architectures, and leaves the call's number."""
    return [
        *((LOAD, 0, 0, 4), (EQUAL, 1, 0, audit), (RETURN, 0, 0, ERRNO | errno.ENOSYS)),
        *((LOAD, 0, 0, 0), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, ERRNO | errno.ENOSYS)),
    ]


def call_filter(audit: int, open_socket: int, open_pair: int, limit: int, refused: Set[int]) -> bytes:
    """Return a filter of system calls: its sockets are connected to each other, and its calls concern itself."""
    steps = [
        *own_calls(audit),
        *(step for one in refused for step in ((EQUAL, 0, 1, one), (RETURN, 0, 0, ERRNO | errno.EPERM))),
        *((EQUAL, 0, 4, limit), (LOAD, 0, 0, 16), (EQUAL, 1, 0, 0), (RETURN, 0, 0, ERRNO | errno.EPERM)),
        *((RETURN, 0, 0, ALLOW), (EQUAL, 1, 0, open_socket), (EQUAL, 0, 7, open_pair)),
        *((LOAD, 0, 0, 16), (EQUAL, 0, 4, socket.AF_UNIX), (LOAD, 0, 0, 24), (AND, 0, 0, 15)),
        *((EQUAL, 2, 0, socket.SOCK_STREAM), (EQUAL, 1, 0, socket.SOCK_SEQPACKET)),
        *((RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def forbid_calls() -> None:
    """Refuse this process and its children such calls; raise OSError if that is refused."""
    if calls := CALLS.get(platform.machine()):
        steps = ctypes.create_string_buffer(call_filter(*calls))
        program = ctypes.create_string_buffer(struct.pack("@HP", len(steps) // 8, ctypes.addressof(steps)))
        check(libc.prctl(SET_SECCOMP, FILTER_MODE, program, 0, 0))


def drop_capabilities() -> None:
    """Drop all capabilities but that for priorities; raise OSError if that is refused."""
    header, sets = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    check(libc.capget(header, sets))
    effective, permitted, *_ = struct.unpack("=6I", sets.raw[:24])
    libc.prctl(AMBIENT, CLEAR_ALL, 0, 0, 0)
    check(libc.capset(header, struct.pack("=6I", effective & NICE, permitted & NICE, 0, 0, 0, 0)))


def check(answer: int) -> int:
    """Return the answer of a system call; raise OSError for a failed one."""
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def main(given: str, *command: str) -> None:
    """Confine this process, and become the command."""
    folder, *readable = json.loads(given)
    os.environ.update(HOME=folder, TMPDIR=folder)
    with contextlib.suppress(OSError):  # Confined, Chromium can't: where memory ends, pages end first.
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(max(300, int(score.read_text(encoding="utf-8")))), encoding="utf-8")
    drop_capabilities()
    check(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    forbid_files((*SYSTEM, *readable), folder)
    forbid_calls()
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
