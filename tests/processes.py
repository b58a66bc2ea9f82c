"""Processes that tests look at, which may end meanwhile."""

import contextlib

import psutil


def command_of(process: psutil.Process) -> str:
    """Return the command line of a process, nothing if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""
