"""Named places at which tests kill the process as ``kill -9`` would.

``DART_CRASH_POINT=after-step:2`` does so at the second pass.
"""

import os
import signal
from collections import Counter

ENVIRONMENT = "DART_CRASH_POINT"

BEFORE_STEP = "before-step"
AFTER_STEP = "after-step"
IN_CHECKPOINT = "in-checkpoint"
AFTER_CHECKPOINT = "after-checkpoint"
AFTER_EVENT = "after-event"
ALL = (BEFORE_STEP, AFTER_STEP, IN_CHECKPOINT, AFTER_CHECKPOINT, AFTER_EVENT)

_passes: Counter[str] = Counter()


def reach(point: str) -> None:
    """Die here if the environment asks for it."""
    _passes[point] += 1
    if os.environ.get(ENVIRONMENT) == f"{point}:{_passes[point]}":
        os.kill(os.getpid(), signal.SIGKILL)
