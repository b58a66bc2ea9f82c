"""Keeps a process of a launched node alive: ``python -m console.launch.keeper NAME LOG GRACE_S COMMAND…``.

It starts the command again when that dies. SIGTERM, or the end of its input, ends it with all that it started. Where
the user must correct something it signals SIGUSR1 to the script that started it, which then ends too.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

from console.launch import subreaper
from dart_streams.errors import AccessRefused, UserError

RESTART_S = 5.0
TAIL_BYTES = 2000
FINAL_CODES = (UserError.exit_code, AccessRefused.exit_code)
"""Exit codes after which a process is not started again."""


def main(arguments: list[str]) -> int:
    """Keep a command alive until it ends by itself with 0, or until a signal."""
    (name, log, grace_s), command = arguments[:3], arguments[3:]
    script, terminal, wake = os.getppid(), os.dup(2), subreaper.catch_signals()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    while True:
        code, stopped = subreaper.run_command(command, float(grace_s), wake)
        if stopped or code == 0:
            return 0
        if code in FINAL_CODES:
            end = Path(log).read_bytes()[-TAIL_BYTES:].decode(errors="replace")
            failed = f"{name} ended with exit code {code}, and does not start again. The end of {log}:\n{end}\n"
            os.write(terminal, failed.encode())
            if os.getppid() == script:  # Otherwise it has ended, and the id may be another's.
                os.kill(script, signal.SIGUSR1)
            return code
        os.write(terminal, f"{name} ended with exit code {code} and starts again; its log is {log}\n".encode())
        if is_stopped(wake, RESTART_S):
            return 0


def is_stopped(wake: int, wait_s: float) -> bool:
    """Return whether a signal or the end of the input says within ``wait_s`` to stop."""
    deadline = time.monotonic() + wait_s
    while (left_s := deadline - time.monotonic()) > 0:
        ready = select.select([0, wake], [], [], left_s)[0]
        if 0 in ready and not os.read(0, 1024):
            return True
        if wake in ready and any(number != signal.SIGCHLD for number in os.read(wake, 1024)):
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
