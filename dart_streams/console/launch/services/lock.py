"""A lock between processes. The operating system releases it with the process that holds it, however that ends."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from dart_streams.errors import ConfigError, ServiceUnavailable

QUIET_S = 0.5
"""A wait as short as this is not reported."""

Notify = Callable[[str], None]
"""Reports to the user at the terminal what a command does or waits for."""


def ignore_message(text: str) -> None:
    """Report nothing."""


@contextlib.contextmanager
def one_at_a_time(folder: Path, wait_s: float, notify: Notify = ignore_message) -> Iterator[None]:
    """Hold the lock of ``folder``, which is created if need be; raise if another holds it for ``wait_s`` seconds."""
    lock = FileLock(folder / "lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=min(QUIET_S, wait_s))
        except Timeout:
            notify(f"waiting for another dart-streams command that works on {folder}")
            lock.acquire(timeout=max(0.0, wait_s - QUIET_S))
    except Timeout:
        raise ServiceUnavailable(
            f"another dart-streams command has held {folder}/lock for {wait_s:.0f} s: is it stuck?"
        ) from None
    except OSError as error:
        raise ConfigError(f"can't write to {folder} ({error.strerror}): set run.state_dir to another folder") from None
    try:
        yield
    finally:
        lock.release()
