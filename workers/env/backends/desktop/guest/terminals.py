"""The bound on a sandbox's terminals: the kernel has some 3,000 for all sandboxes together, and counts none apart."""

import asyncio
import os
from pathlib import Path

MAX_TERMINALS = 64
POLL_INTERVAL_S = 0.5
EXCEEDED = 65
"""The exit code of a sandbox that has opened more."""
FOLDER = "/dev/pts"


def count_terminals(folder: str = FOLDER) -> int:
    """Return how many there are, and the one file that opens them."""
    try:
        return sum(1 for _ in Path(folder).iterdir())
    except FileNotFoundError:
        return 0


async def end_with_too_many() -> None:
    """End the sandbox when it has too many, all its processes with it; look for ever."""
    while True:
        await asyncio.sleep(POLL_INTERVAL_S)
        if count_terminals() > MAX_TERMINALS + 1:
            os._exit(EXCEEDED)
