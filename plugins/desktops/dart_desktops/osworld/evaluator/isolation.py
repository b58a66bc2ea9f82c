"""Isolation of one evaluation, which parses files of the policy: name spaces, limits, and no rights.

Its network has nothing but loopback, with a listener for each port of its machine. Whoever gets these listeners, the
worker, accepts what connects there and forwards it: an evaluation cannot reach another machine.
"""

import contextlib
import ctypes
import fcntl
import os
import resource
import shutil
import signal
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

LOOPBACK = "127.0.0.1"
CACHE, TASK = Path("/cache"), Path("/task")
"""Folders of all tasks' reference files, and of this evaluation's copies, which it may change."""
WRITABLE_BYTES = {TASK: 2**30, Path("/tmp"): 2**30, Path("/dev/shm"): 2**28}
"""Folders in memory that are this evaluation's own, and their sizes."""
SPACES = 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000 | 0x08000000
"""CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWIPC."""
READ_ONLY = 1
"""MS_RDONLY."""
INTERFACE_UP = 0x41
"""IFF_UP, IFF_RUNNING."""
SET_INTERFACE = 0x8914
"""SIOCSIFFLAGS."""
KILL_ON_PARENTS_END, SET_FILTER, NO_NEW_PRIVILEGES = 1, 22, 38
"""PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS of prctl."""
CAPABILITIES = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3."""
MEMORY_BYTES = 3 * 2**30
"""Address space beyond that of the sidecar's packages; the largest documents of the tasks take a tenth of it."""
LIMITS = {
    resource.RLIMIT_FSIZE: 2**29,
    resource.RLIMIT_NPROC: 256,
    resource.RLIMIT_NOFILE: 1024,
    resource.RLIMIT_CORE: 0,
}
libc = ctypes.CDLL(None, use_errno=True)


def enter_name_spaces(folder: Path | None = None, ports: Iterable[int] = ()) -> list[socket.socket]:
    """Move this process and its children into name spaces of their own; return the listeners of ``ports``.

    ``folder`` has the reference files, which are copied to :data:`TASK`; other folders of the cache are hidden.
    Raises OSError if the system refuses.
    """
    user, group = os.getuid(), os.getgid()
    call_library("unshare", SPACES)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="utf-8")
    for place, size in WRITABLE_BYTES.items():
        mount_memory(place, size)
    if folder is not None:
        shutil.copytree(folder, TASK, dirs_exist_ok=True)
    mount_memory(CACHE, 4096, READ_ONLY)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_INTERFACE, struct.pack("16sh", b"lo", INTERFACE_UP))
    return [socket.create_server((LOOPBACK, port)) for port in ports]


def mount_memory(place: Path, size: int, flags: int = 0) -> None:
    """Mount an empty folder in memory over ``place``."""
    call_library("mount", b"tmpfs", bytes(place), b"tmpfs", flags, f"size={size},mode=700".encode())


def close_descriptors(kept: int) -> None:
    """Close all descriptors but ``kept``; the standard ones lead nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):  # The one of this list is closed already.
                os.close(number)


def give_up_rights(refusals: bytes) -> None:
    """Drop the rights in the name spaces, and refuse system calls by a filter, without which none is refused."""
    call_library("capset", struct.pack("Ii", CAPABILITIES, 0), bytes(24))
    call_library("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if refusals:
        program = struct.pack(
            "@HP", len(refusals) // 8, ctypes.addressof(buffer := ctypes.create_string_buffer(refusals))
        )
        call_library("prctl", SET_FILTER, 2, program, 0, 0)
        del buffer


def set_limits(cpu_s: int) -> None:
    """Limit processor time, memory, files and processes of this process."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    for limit, most in (LIMITS | {resource.RLIMIT_AS: pages * resource.getpagesize() + MEMORY_BYTES}).items():
        resource.setrlimit(limit, (most, most))


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    call_library("prctl", KILL_ON_PARENTS_END, signal.SIGKILL, 0, 0, 0)


def call_library(name: str, *arguments: int | bytes) -> None:
    """Call a function of the C library; raise OSError if it fails."""
    words = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in arguments]
    if getattr(libc, name)(*words) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
