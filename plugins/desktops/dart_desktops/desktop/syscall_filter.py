"""Seccomp filter for bubblewrap: the system calls that programs in a sandbox may not use.

Some socket families ignore network namespaces, such as AF_VSOCK, which reaches the host of a virtual machine. Keyrings
belong to the host's user. Nothing needs io_uring, bpf and perf, which have had many of the kernel's vulnerabilities.
"""

import errno
import platform
import socket
import struct

from workers.env.foreign_process import ALLOW, CALLS, EQUAL, ERRNO, LOAD, RETURN, Step, own_calls

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Socket families that desktops use; others fail as if the kernel did not support them."""
ANY_BIT, FIRST_ARGUMENT = 0x45, 16
"""BPF_JMP|JSET|K, and the offset of the first argument in ``struct seccomp_data``: its lower half, an ``int``."""
REFUSED = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
"""Numbers of the refused calls on x86-64 and aarch64."""
SPACES = {"unshare": (272, 97), "setns": (308, 268), "clone3": (435, 435)}
"""Likewise of calls for name spaces; libraries use clone where the kernel lacks clone3, whose flags no filter reads."""
CLONE = (56, 220)
NEW_USER = 0x10000000
"""CLONE_NEWUSER, without which no process without rights makes other name spaces."""


def build_filter(machine: str, name_spaces: bool = True) -> list[Step]:
    """Return the filter of an architecture, which also refuses all calls of other architectures (32-bit programs).

    Without ``name_spaces`` it refuses these too.
    """
    place, (audit, *sockets) = list(CALLS).index(machine), CALLS[machine][:3]
    refused, steps = dict(REFUSED), own_calls(audit)
    if not name_spaces:
        refused |= SPACES
        steps += [(EQUAL, 0, 4, CLONE[place]), (LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 0, 1, NEW_USER)]
        steps += [(RETURN, 0, 0, ERRNO | errno.EPERM), (RETURN, 0, 0, ALLOW)]
    for numbers in refused.values():
        steps += [(EQUAL, 0, 1, numbers[place]), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    steps += [(EQUAL, 2, 0, sockets[0]), (EQUAL, 1, 0, sockets[1]), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, FIRST_ARGUMENT)]
    steps += [(EQUAL, len(FAMILIES) - number, 0, family) for number, family in enumerate(FAMILIES)]
    return [*steps, (RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)]


def compile_filter(name: str | None = None, name_spaces: bool = True) -> bytes:
    """Return the filter of this machine in the kernel's format, empty for an unknown architecture."""
    machine = name or platform.machine()
    return (
        b"".join(struct.pack("=HBBI", *step) for step in build_filter(machine, name_spaces))
        if machine in CALLS
        else b""
    )
