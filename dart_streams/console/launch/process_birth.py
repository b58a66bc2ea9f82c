"""When a process began, by the kernel's own count since the machine started: no step of the wall clock changes it."""

import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
BOOT_ID = PROC / "sys" / "kernel" / "random" / "boot_id"
STARTED_FIELD = 19
"""Of ``/proc/PID/stat``, counted from behind the process's name."""


class Birth(NamedTuple):
    """A start of the machine, and the clock ticks from it to the process's own."""

    boot: str
    ticks: int

    @property
    def age_s(self) -> float:
        """Seconds since then."""
        uptime_s = float((PROC / "uptime").read_text().split()[0])
        return uptime_s - self.ticks / os.sysconf("SC_CLK_TCK")


def birth_of(pid: int) -> Birth | None:
    """Return when a process began; None if there is none, or the system does not say."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return Birth(BOOT_ID.read_text().strip(), int(fields[STARTED_FIELD]))
    except (OSError, ValueError, IndexError):
        return None
