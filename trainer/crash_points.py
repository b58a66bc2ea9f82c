"""Named points at which tests kill (SIGKILL) or stop (SIGSTOP) the process.

``DART_CRASH_POINT=after-step:2`` kills at the second pass, ``after-step:2:stop`` stops.
"""

import os
import signal
from collections import Counter

ENVIRONMENT = "DART_CRASH_POINT"
STOP = "stop"

BEFORE_STEP = "before-step"
AFTER_STEP = "after-step"
IN_CHECKPOINT = "in-checkpoint"
AFTER_CHECKPOINT = "after-checkpoint"
BEFORE_EVENT = "before-event"
AFTER_FILES = "after-files"
AFTER_EVENT = "after-event"
ALL = (BEFORE_STEP, AFTER_STEP, IN_CHECKPOINT, AFTER_CHECKPOINT, BEFORE_EVENT, AFTER_FILES, AFTER_EVENT)

_passes: Counter[str] = Counter()


def reach(point: str) -> None:
    """Kill or stop the process here if the environment asks for it."""
    _passes[point] += 1
    wanted, this = os.environ.get(ENVIRONMENT), f"{point}:{_passes[point]}"
    if wanted in (this, f"{this}:{STOP}"):
        os.kill(os.getpid(), signal.SIGKILL if wanted == this else signal.SIGSTOP)
