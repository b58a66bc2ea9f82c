"""The life of a worker process: connect, work until a signal or the first exit, drain, exit.

A worker's ``main.py`` provides the ``connect`` coroutine.
"""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from dart_streams.background import stop_signals
from dart_streams.config import Config
from dart_streams.config.hardware import available_cores
from dart_streams.telemetry import setup
from dart_streams.telemetry.health_server import answering_probes
from dart_streams.telemetry.process_health import ProcessHealth

T = TypeVar("T")

CANCEL_TIMEOUT_S = 5.0
TURN_BOUND_S = 60.0
"""Time limit of a turn of the event loop: six times the consumer group's limit for heartbeats."""
TURN_INTERVAL_S = 1.0
GC_THRESHOLDS = (20_000, 20, 50)
"""Thresholds of the young, middle and old generation (see ``gc.set_threshold``)."""


class Worker(msgspec.Struct, frozen=True):
    """A connected worker.

    ``serve`` works until its event is set, then drains and returns; ``background`` tasks, by name, run as long.
    ``find_lack`` returns what the worker lacks to be ready, empty for nothing, for its probes
    (:mod:`dart_streams.telemetry.health_server`).
    """

    serve: Callable[[asyncio.Event], Coroutine[Any, Any, object]]
    background: Mapping[str, Callable[[], Awaitable[Any]]] = {}
    find_lack: Callable[[], str] = lambda: ""


Connect = Callable[[Config, str, contextlib.AsyncExitStack], Coroutine[Any, Any, Worker]]
"""Builds a worker from configuration and worker id; resources to close are pushed on the stack."""


class UnexpectedExit(Exception):
    """A background task returned before the end of the process."""


def run(connect: Connect, config: Config, worker_id: str) -> int:
    """Run worker ``worker_id`` until SIGTERM or SIGINT; return the exit code.

    Errors of ``connect`` and of the worker's parts propagate unchanged.
    """
    setup.start(config, worker_id)
    health = ProcessHealth(TURN_BOUND_S)
    try:
        with answering_probes(health):
            return asyncio.run(run_until_stopped(connect, config, worker_id, health=health))
    finally:
        setup.stop()


async def run_until_stopped(
    connect: Connect,
    config: Config,
    worker_id: str,
    stop: asyncio.Event | None = None,
    health: ProcessHealth | None = None,
) -> int:
    """Connect, serve until ``stop`` is set (by default by signals), drain; return the exit code."""
    stop = stop or stop_on_signals()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(available_cores() + 4))
    health = health or ProcessHealth(TURN_BOUND_S)
    async with contextlib.AsyncExitStack() as resources:
        worker = await cancel_on_stop(stop, connect(config, worker_id, resources))
        if worker is not None:
            freeze_gc()
            background = {name: task() for name, task in worker.background.items()}
            turns = note_turns(health, worker.find_lack)
            await run_until_first_exit(worker.serve(stop), turns=turns, **background)  # Refuses a name given twice.
    return 0


async def note_turns(health: ProcessHealth, find_lack: Callable[[], str]) -> None:
    """Note the turns of the event loop, and what the worker lacks at each, until cancelled."""
    while True:
        health.note_turn(find_lack())
        await asyncio.sleep(TURN_INTERVAL_S)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set, and the end of the terminal."""
    stop = asyncio.Event()
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def freeze_gc() -> None:
    """Exempt present objects from garbage collection, and collect others less often.

    Call it once everything is connected. Hundreds of episodes have hundreds of thousands of objects that live for
    minutes; traversing them takes a tenth of the time and pauses every episode.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def cancel_on_stop(stop: asyncio.Event, start: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of ``start``; if ``stop`` is set first, cancel it and return None."""
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


async def run_until_first_exit(work: Coroutine[Any, Any, object], **background: Awaitable[Any]) -> None:
    """Run ``work`` to its end; raise UnexpectedExit if a background task, named by its keyword, returns first."""
    main = asyncio.create_task(work)
    tasks = {asyncio.ensure_future(task): name for name, task in background.items()}
    try:
        done, _ = await asyncio.wait({main, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if main not in done:
            raise UnexpectedExit(f"background task exited: {', '.join(tasks[task] for task in done)}")
    finally:
        for task in (main, *tasks):
            task.cancel()
        ended, _ = await asyncio.wait({main, *tasks}, timeout=CANCEL_TIMEOUT_S)
        for task in ended:
            # The first error is raised; retrieving the ones that follow from it keeps asyncio from logging them.
            _ = task.cancelled() or task.exception()
