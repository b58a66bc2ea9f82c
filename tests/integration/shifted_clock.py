"""``dart-streams`` in a process whose wall clock is off: ``shifted_clock.py OFFSET_S JUMP_S COMMAND…``.

It is off by OFFSET_S from the start, and by JUMP_S more after SIGUSR1. Monotonic time is as it is. aiokafka has to go
without its extensions, which read the clock past Python.
"""

import os
import signal
import sys
import time

if __name__ == "__main__":
    os.environ["AIOKAFKA_NO_EXTENSIONS"] = "1"
    true_ns, off_ns, jump_ns = time.time_ns, [int(sys.argv[1]) * 10**9], int(sys.argv[2]) * 10**9
    time.time_ns = lambda: true_ns() + off_ns[0]
    time.time = lambda: time.time_ns() / 1e9

    def jump(*_: object) -> None:
        off_ns[0] += jump_ns

    signal.signal(signal.SIGUSR1, jump)

    from console.cli.main import main

    # A supervisor gives the program's path as well.
    sys.argv = ["dart-streams", *(sys.argv[4:] if sys.argv[3].endswith("/dart-streams") else sys.argv[3:])]
    sys.exit(main())
