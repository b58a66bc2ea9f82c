"""The priority of a session of processes: with autogroups, sessions share the processors.

A niceness alone counts only within its session then.
"""

import contextlib
from pathlib import Path


def lower_session(pid: int, niceness: int) -> None:
    """Lower the priority of a process's session, if the kernel has autogroups; never raises."""
    with contextlib.suppress(OSError):  # It has ended already, or this is not permitted.
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
