"""A lock between processes, which the operating system releases when its process ends."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from dart_streams.disk_room import make_private
from dart_streams.errors import ConfigError, ServiceUnavailable

QUIET_S = 0.5
"""Longest wait that is not reported."""

Notify = Callable[[str], None]
"""Reports a command's progress at the terminal."""


def ignore_message(text: str) -> None:
    """Ignore a message."""


@contextlib.contextmanager
def one_at_a_time(folder: Path, wait_s: float, notify: Notify = ignore_message) -> Iterator[None]:
    """Hold the lock of ``folder``, created if missing; raise after ``wait_s`` seconds without it."""
    lock = FileLock(folder / "lock")
    try:
        make_private(folder)
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
