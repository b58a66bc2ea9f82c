"""An engine that leaves nothing behind in the process of the tests."""

import asyncio
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dart_streams.deadline import Deadline

ENDING_S = 30.0


async def stop_engine(engine: Any) -> None:
    """Stop an engine and wait for the end of its thread, which ends vLLM's process groups: they are the process's."""
    await engine.stop()
    await asyncio.to_thread(engine.thread._thread.join, ENDING_S)
    assert not engine.thread._thread.is_alive()


def loader_of_core(core: Any) -> Any:
    """Return the weight loader of an engine whose only rank is in this process."""
    return core.llm.model_executor.driver_worker.worker.weight_loader


def wait_until_ended(pids: Collection[int]) -> None:
    """Wait until processes have ended, by :data:`ENDING_S` at most."""
    deadline = Deadline(ENDING_S)
    while left := [pid for pid in pids if is_running(pid)]:
        assert not deadline.expired, left
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return whether a process has not ended; one that only waits to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
