"""Ends what of a browser takes too much memory: the renderer of a page that leaks, or the whole browser.

A context has a renderer of its own, so a page that grows without end costs its episode; its seat is not used again. The
browser's own process holds what pages hand over to it, blobs for instance.
"""

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

import psutil
import structlog

from workers.env import metrics
from workers.env.backends.miniwob.devtools import DevTools
from workers.env.environment import EnvironmentFault

RENDERER_BYTES = 1 << 30
"""Of one renderer: three times what one takes that keeps each page there is."""
BROWSER_BYTES = 2 << 30
"""Of the browser's own process."""
POLL_INTERVAL_S = 2.0
"""Between two looks; a page that fills memory takes about as long for a gigabyte."""
PROCESSES = "SystemInfo.getProcessInfo"

log = structlog.get_logger()


class Process(NamedTuple):
    """A process of a browser: ``kind`` as the browser names it, and its resident memory."""

    pid: int
    kind: str
    size_bytes: int


def bound_of(kind: str) -> int:
    """Return how much memory a process may take, in bytes."""
    return RENDERER_BYTES if kind == "renderer" else BROWSER_BYTES


async def end_what_grows(devtools: DevTools) -> None:
    """Kill each process of a browser that is past its bound, until the connection is closed.

    The browser says of a renderer that it has crashed; if its own process is killed, the connection ends.
    """
    while not devtools.closed:
        await asyncio.sleep(POLL_INTERVAL_S)
        for process in await processes_of(devtools):
            if process.size_bytes > (bound := bound_of(process.kind)):
                end(process, bound)


async def processes_of(devtools: DevTools) -> list[Process]:
    """Return the processes of a browser; none if it does not answer."""
    try:
        found: list[Mapping[str, Any]] = (await devtools.call(PROCESSES))["processInfo"]
    except (EnvironmentFault, KeyError):
        return []
    sizes = [(int(one["id"]), str(one["type"])) for one in found]
    return [Process(pid, kind, size_of(pid)) for pid, kind in sizes]


def size_of(pid: int) -> int:
    """Return the resident memory of a process in bytes, 0 if it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def end(process: Process, bound: int) -> None:
    """Kill a process, and say so."""
    log.warning(
        "browser process ended",
        kind=process.kind,
        pid=process.pid,
        reason=f"it took {process.size_bytes >> 20} MB of memory, of {bound >> 20} at most: a page leaks",
    )
    metrics.browser_memory.add(1, {"kind": process.kind})
    with contextlib.suppress(psutil.Error):
        psutil.Process(process.pid).send_signal(signal.SIGKILL)
