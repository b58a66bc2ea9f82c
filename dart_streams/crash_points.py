"""Named places at which tests kill a worker as ``kill -9`` would: before and after each durable effect.

``DART_CRASH_POINTS=recorder-rows:5,env-handled:7`` kills the recorder at its fifth pass of the first place, and an env
worker at its seventh of the other. With ``DART_CRASH_LOG=FILE`` a place that FILE names is passed: a process that was
started again goes on. The trainer has its own, which may stop it as well (:mod:`trainer.crash_points`).
"""

import os
import signal
from collections import Counter
from pathlib import Path

ENVIRONMENT, LOG = "DART_CRASH_POINTS", "DART_CRASH_LOG"

RECORDER = ("recorder-polled", "recorder-rows", "recorder-announced", "recorder-committed")
ORDERED = ("taken", "handled", "committed")
"""Places of every consumer that commits in order, after the name of its group."""
ENV = tuple(f"env-{place}" for place in ORDERED)
ROLLOUT = tuple(f"rollout-{place}" for place in ORDERED)
CURATOR = ("curator-applied", "curator-journaled", "curator-published", "curator-acknowledged")
ALL = (*RECORDER, *ENV, *ROLLOUT, *CURATOR)

_wanted = {
    place: int(number)
    for place, _, number in (part.partition(":") for part in os.environ.get(ENVIRONMENT, "").split(",") if part)
}
_passes: Counter[str] = Counter()


def reach(place: str) -> None:
    """Die here if the environment asks for it."""
    if place not in _wanted:
        return
    _passes[place] += 1
    if _passes[place] != _wanted[place]:
        return
    if file := os.environ.get(LOG):
        log = Path(file)
        if log.exists() and place in log.read_text().split():
            return
        with log.open("a") as places:
            places.write(f"{place}\n")
    os.kill(os.getpid(), signal.SIGKILL)
