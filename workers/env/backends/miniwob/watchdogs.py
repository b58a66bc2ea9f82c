"""Watchdogs of a browser: one ends processes that take too much memory, one a browser that no longer responds.

Each context has its own renderer, so a page that leaks costs only its episode. The browser's own process holds the data
that pages hand over to it, such as blobs.

A call of a page that hangs runs into its time-out, so a late call alone proves nothing. If the browser owes a response
and sends nothing, its own process is asked and observed: if it neither responds, nor computes, nor waits for a
processor, the browser is lost.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable

import psutil
import structlog

from workers.env import metrics
from workers.env.backends.miniwob.devtools import DevTools
from workers.env.backends.miniwob.process_load import ProcessLoad, rests
from workers.env.environment import EnvironmentFault

RENDERER_BYTES = 1 << 30
"""Memory limit of a renderer: three times that of one that keeps all pages."""
BROWSER_BYTES = 2 << 30
"""Memory limit of the browser's own process."""
MEMORY_INTERVAL_S = 2.0
"""Poll interval of memory; a page that fills memory takes about as long for a gigabyte."""
SILENT_S = 1.0
"""Time without a message after which a browser that owes a response is asked."""
POLL_INTERVAL_S = 0.5
LOOKS = 2
"""Consecutive polls at rest, without a response, after which the browser is lost."""
QUESTION = "Browser.getVersion"
"""Call that the browser's own process answers, whatever its pages do."""

log = structlog.get_logger()


async def end_large_processes(devtools: DevTools, session: int) -> None:
    """Kill each process of a browser that exceeds its memory limit, until the connection is closed.

    A browser that a page took over may name any process: only those of its own ``session`` are killed.
    """
    while not devtools.closed:
        await asyncio.sleep(MEMORY_INTERVAL_S)
        with contextlib.suppress(EnvironmentFault, LookupError, TypeError):
            for process in (await devtools.call("SystemInfo.getProcessInfo"))["processInfo"]:
                with contextlib.suppress(psutil.Error, OSError, LookupError, TypeError, ValueError):
                    limit = RENDERER_BYTES if process["type"] == "renderer" else BROWSER_BYTES
                    if os.getsid(int(process["id"])) == session:
                        end_if_large(psutil.Process(int(process["id"])), process["type"], limit)


def end_if_large(process: psutil.Process, kind: str, limit: int) -> None:
    """Kill a process that exceeds its memory limit, with a warning."""
    if (size := process.memory_info().rss) <= limit:
        return
    reason = f"it took {size >> 20} MB of memory, of {limit >> 20} at most: a page leaks"
    log.warning("browser process ended", kind=kind, pid=process.pid, reason=reason)
    metrics.browser_memory.add(1, {"kind": kind})
    process.kill()


async def end_when_silent(devtools: DevTools, load: Callable[[], ProcessLoad]) -> None:
    """Close the connection once the browser is lost; ``load`` is that of its own process, without its children."""
    while not devtools.closed:
        await asyncio.sleep(POLL_INTERVAL_S)
        if devtools.silent_s > SILENT_S and await never_answers(devtools, load):
            await devtools.close("the browser stands still")


async def never_answers(devtools: DevTools, load: Callable[[], ProcessLoad]) -> bool:
    """Ask the browser; return whether it will never respond."""
    if devtools.closed:
        return False
    answer = devtools.send(QUESTION)
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    before, at_rest = await asyncio.to_thread(load), 0
    while not (await asyncio.wait({answer}, timeout=POLL_INTERVAL_S))[0]:
        now = await asyncio.to_thread(load)
        at_rest = at_rest + 1 if rests(before, now) else 0
        if at_rest >= LOOKS:
            return True
        before = now
    return False
