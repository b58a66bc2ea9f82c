"""Seccomp filter for bubblewrap: the system calls that programs in a sandbox may not use.

Some socket families ignore network namespaces, such as AF_VSOCK, which reaches the host of a virtual machine. Keyrings
belong to the host's user. Nothing needs io_uring, bpf and perf, which have had many of the kernel's vulnerabilities.
"""

import errno
import platform
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Socket families that desktops use; others fail as if the kernel did not support them."""
LOAD, EQUAL, GREATER_EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_JMP|JSET|K, BPF_RET|K."""
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets in ``struct seccomp_data``; of the first argument the lower half, an ``int``."""
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
X32 = 0x40000000
"""First call number of x86-64's x32 ABI, which nothing here uses."""


class Architecture(NamedTuple):
    """An architecture: its audit number, the calls that open sockets, the refused calls, and calls for name spaces."""

    audit: int
    sockets: tuple[int, ...]
    refused: Mapping[str, int]
    spaces: Mapping[str, int]


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
SPACES = {"unshare": (272, 97), "setns": (308, 268), "clone3": (435, 435), "clone": (56, 220)}
"""Likewise of calls for name spaces; libraries use clone where the kernel lacks clone3, whose flags no filter reads."""
NEW_USER = 0x10000000
"""CLONE_NEWUSER, without which no process without rights makes other name spaces."""


def numbers_of(calls: Mapping[str, tuple[int, int]], place: int) -> dict[str, int]:
    """Return the numbers of calls on x86-64 (0) or aarch64 (1)."""
    return {name: numbers[place] for name, numbers in calls.items()}


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, (41, 53), numbers_of(REFUSED, 0), numbers_of(SPACES, 0)),
    "aarch64": Architecture(0xC00000B7, (198, 199), numbers_of(REFUSED, 1), numbers_of(SPACES, 1)),
}


class Instruction(NamedTuple):
    """One instruction of classic BPF; jumps are numbers of skipped instructions."""

    code: int
    value: int
    if_true: int = 0
    if_false: int = 0


def build_filter(architecture: Architecture, name_spaces: bool = True) -> list[Instruction]:
    """Return the filter of an architecture, which also refuses all calls of other architectures (32-bit programs).

    Without ``name_spaces`` it refuses these too.
    """
    instructions = [
        Instruction(LOAD, ARCHITECTURE),
        Instruction(EQUAL, architecture.audit, if_true=1),
        Instruction(RETURN, ERRNO | errno.ENOSYS),
        Instruction(LOAD, NUMBER),
        Instruction(GREATER_EQUAL, X32, if_false=1),
        Instruction(RETURN, ERRNO | errno.ENOSYS),
    ]
    refused = dict(architecture.refused)
    if not name_spaces:
        refused |= architecture.spaces
        instructions += [
            Instruction(EQUAL, refused.pop("clone"), if_false=4),
            Instruction(LOAD, FIRST_ARGUMENT),
            Instruction(ANY_BIT, NEW_USER, if_false=1),
            Instruction(RETURN, ERRNO | errno.EPERM),
            Instruction(RETURN, ALLOW),
        ]
    for number in sorted(refused.values()):
        instructions += [Instruction(EQUAL, number, if_false=1), Instruction(RETURN, ERRNO | errno.ENOSYS)]
    return instructions + family_check(architecture.sockets)


def family_check(calls: Sequence[int]) -> list[Instruction]:
    """Return the end of a filter: these calls are allowed with the known families, other calls always."""
    check = [Instruction(LOAD, FIRST_ARGUMENT)]
    for place, family in enumerate(FAMILIES):
        check.append(Instruction(EQUAL, family, if_true=len(FAMILIES) - place))
    check += [Instruction(RETURN, ERRNO | errno.EAFNOSUPPORT), Instruction(RETURN, ALLOW)]
    jumps = [Instruction(EQUAL, call, if_true=len(calls) - place) for place, call in enumerate(calls)]
    return [*jumps, Instruction(RETURN, ALLOW), *check]


def compile_filter(name: str | None = None, name_spaces: bool = True) -> bytes:
    """Return the filter of this machine in the kernel's format, empty for an unknown architecture."""
    architecture = ARCHITECTURES.get(name or platform.machine())
    if architecture is None:
        return b""
    return b"".join(
        struct.pack("=HBBI", step.code, step.if_true, step.if_false, step.value)
        for step in build_filter(architecture, name_spaces)
    )
