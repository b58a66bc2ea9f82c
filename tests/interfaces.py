"""Who needs this machine's network interfaces to stay as they are, and who changes them: one lock for all processes.

A browser ends the requests that are under way when an address is added or removed (``ERR_NETWORK_CHANGED``), those to
this machine too, and has no switch for it.
"""

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

LOCK = Path(tempfile.gettempdir()) / f"dart-test-interfaces-{os.getuid()}.lock"


@contextlib.asynccontextmanager
async def unchanged() -> AsyncIterator[None]:
    """Keep the interfaces as they are for the body; any number of processes may at the same time."""
    with LOCK.open("a") as file:
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """Change interfaces in the body, once they may change."""
    with LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
