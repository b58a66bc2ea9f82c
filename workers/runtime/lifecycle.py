"""How a process lives: it starts unless told to stop, works beside what supports it, and ends with its first error."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_S = 5.0
"""A part that was told to end is not waited for any longer than this."""


COLLECT_AFTER = (20_000, 20, 50)
"""When the cyclic collector looks through the young, the middle and the old objects (see ``gc.set_threshold``)."""


class PartEnded(Exception):
    """A part of a process that should go on for ever has ended."""


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def freeze_gc() -> None:
    """Have Python's cyclic collector look less often, and never again at what is there by now.

    A worker of hundreds of episodes has hundreds of thousands of objects that live for minutes; to walk over them costs
    more than a tenth of its time, and stops all of them for as long. Call it once everything is connected.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def cancel_on_stop(stop: asyncio.Event, start: Coroutine[Any, Any, T]) -> T | None:
    """Return what ``start`` returns; if ``stop`` is set first, cancel it and return None."""
    starting, stopped = asyncio.create_task(start), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return None
    finally:
        stopped.cancel()


async def run_until_first_exit(work: Coroutine[Any, Any, None], **support: Awaitable[None]) -> None:
    """Run ``work`` to its end beside what supports it; the end of a supporting part, even a clean one, is an error.

    Raises
    ------
    PartEnded
        If a supporting part, named by its keyword, ended without an error of its own.
    """
    main = asyncio.create_task(work)
    parts = {asyncio.ensure_future(part): name for name, part in support.items()}
    try:
        done, _ = await asyncio.wait({main, *parts}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if main not in done:
            names = ", ".join(parts[task] for task in done if task in parts)
            raise PartEnded(f"{names} should go on for ever, but has ended")
    finally:
        for task in (main, *parts):
            task.cancel()
        ended, _ = await asyncio.wait({main, *parts}, timeout=CANCEL_S)
        for task in ended:
            # What broke first is raised; what broke because of that is not worth a second report.
            _ = task.cancelled() or task.exception()
