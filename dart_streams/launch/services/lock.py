"""A lock between processes: the operating system's, so it goes with the process that holds it, however that ends."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dart_streams.errors import ConfigError, ServiceUnavailable

POLL_S = 0.1

Tell = Callable[[str], None]
"""How a function tells the person at the terminal what it does or waits for."""


def silently(text: str) -> None:
    """Tell nobody."""


@contextlib.contextmanager
def one_at_a_time(folder: Path, wait_s: float, tell: Tell = silently) -> Iterator[None]:
    """Hold the lock of ``folder``, made if need be.

    Raises
    ------
    ServiceUnavailable
        If another process holds it for more than ``wait_s`` seconds.
    ConfigError
        If the folder can't be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"can't write to {folder} ({error.strerror}): set run.state_dir to another folder") from None
    try:
        deadline = time.monotonic() + wait_s
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ServiceUnavailable(
                        f"another dart-streams command has held {folder}/lock for {wait_s:.0f} s: is it stuck?"
                    ) from None
                if not told:
                    tell(f"waiting for another dart-streams command that works on {folder}")
                    told = True
                time.sleep(POLL_S)
        yield
    finally:
        os.close(handle)
