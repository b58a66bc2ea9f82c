"""A matrix or a soak that is interrupted gives back what it holds: services, circles, namespaces and disks."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

GRACE_S = 120.0
"""How long tests that were interrupted have for their fixtures' ends."""


def unwind_at_sigterm() -> None:
    """Let SIGTERM end this process by an exception, which unwinds its contexts.

    SIGINT as well, also where a shell has started it in the background, which ignores that signal from then on.
    """

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would end what the first has begun
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_to_its_end(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
    """Return the exit code of a command, which is interrupted, as by Ctrl-C, and waited for where this process ends.

    It is in a process group of its own: a terminal's Ctrl-C would interrupt it twice, and so also its fixtures' ends.
    """
    with subprocess.Popen(command, cwd=folder, env=environment, process_group=0) as process:
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(GRACE_S)
            process.kill()
            raise
