"""Named places at which tests kill a process as ``kill -9`` would, or stop it like a frozen machine.

``DART_CRASH_POINTS=recorder-rows:5,after-step:2:stop`` kills the recorder at its fifth pass of the first place, and
stops the trainer at its second pass of the other. A place that the file ``DART_CRASH_LOG`` names kills nothing more, so
that a restarted process goes on.
"""

import os
import signal
from collections import Counter
from pathlib import Path

ENVIRONMENT, LOG, STOP = "DART_CRASH_POINTS", "DART_CRASH_LOG", "stop"

RECORDER = ("recorder-polled", "recorder-rows", "recorder-announced", "recorder-committed")
ORDERED = ("taken", "handled", "committed")
"""Places of every consumer that commits in order, prefixed by its group."""
CURATOR = ("curator-applied", "curator-journaled", "curator-published", "curator-acknowledged")
WORKERS = (*RECORDER, *(f"{group}-{place}" for group in ("env", "rollout") for place in ORDERED), *CURATOR)

BEFORE_STEP = "before-step"
AFTER_STEP = "after-step"
IN_CHECKPOINT = "in-checkpoint"
AFTER_CHECKPOINT = "after-checkpoint"
BEFORE_EVENT = "before-event"
AFTER_FILES = "after-files"
AFTER_EVENT = "after-event"
TRAINER = (BEFORE_STEP, AFTER_STEP, IN_CHECKPOINT, AFTER_CHECKPOINT, BEFORE_EVENT, AFTER_FILES, AFTER_EVENT)

_passes: Counter[str] = Counter()


def reach(place: str) -> None:
    """Die or stop here if the environment asks for it."""
    if not (wanted := os.environ.get(ENVIRONMENT)):
        return
    _passes[place] += 1
    this, points = f"{place}:{_passes[place]}", wanted.split(",")
    if f"{this}:{STOP}" in points:
        os.kill(os.getpid(), signal.SIGSTOP)
    if this not in points:
        return
    if file := os.environ.get(LOG):
        log = Path(file)
        if log.exists() and place in log.read_text(encoding="utf-8").split():
            return
        with log.open("a", encoding="utf-8") as places:
            places.write(f"{place}\n")
    os.kill(os.getpid(), signal.SIGKILL)
