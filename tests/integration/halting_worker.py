"""A worker whose event loop SIGUSR1 halts for good, and whose turns are bounded by two seconds.

Usage: python -m tests.integration.halting_worker worker KIND --config FILE --id NAME. Its probes
are those of every worker.
"""

import signal
import threading

from console.cli.main import main
from workers.runtime import lifecycle

lifecycle.TURN_BOUND_S = 2.0


def halt(*_: object) -> None:
    threading.Event().wait()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, halt)
    main()
