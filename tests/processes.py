"""Processes that tests look at, which may end meanwhile."""

import contextlib
from collections.abc import Iterable

import psutil

from console.launch import subreaper


def command_of(process: psutil.Process) -> str:
    """Return the command line of a process, nothing if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def marked(processes: Iterable[psutil.Process], mark: str) -> list[psutil.Process]:
    """Return the processes with these words in their command line, but not those that start them again."""
    lines = [(one, command_of(one)) for one in processes]
    return [one for one, line in lines if mark in line and subreaper.__file__ not in line]
