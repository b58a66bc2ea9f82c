"""An interpreter of filters of system calls, as the kernel has one."""

import errno
import struct

from workers.env.foreign_process import AND, AT_LEAST, EQUAL, ERRNO, LOAD, RETURN

ANY_BIT = 0x45


def answer(code: bytes, audit: int, number: int, first: int = 0, second: int = 0) -> str:
    """Return the name of the error that a filter gives a call; empty if it allows it."""
    steps = [*struct.iter_unpack("=HBBI", code)]
    call = {0: number, 4: audit, 16: first & 0xFFFFFFFF, 24: second}
    value, place = 0, 0
    while True:
        kind, if_true, if_false, given = steps[place]
        if kind == RETURN:
            return errno.errorcode.get(given - ERRNO, "")
        value = call[given] if kind == LOAD else value & given if kind == AND else value
        holds = {EQUAL: value == given, AT_LEAST: value >= given, ANY_BIT: bool(value & given)}.get(kind)
        place += 1 + (0 if holds is None else if_true if holds else if_false)
