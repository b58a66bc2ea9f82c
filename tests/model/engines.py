"""An engine that leaves nothing behind in the process of the tests."""

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

ENDING_S = 120.0


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
    wait_until(lambda: not any(map(is_running, pids)), f"the end of {pids}", ENDING_S)


def is_running(pid: int) -> bool:
    """Return whether a process has not ended; one that only waits to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
