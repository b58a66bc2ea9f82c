"""Which service a run's processes wait for, by the newest lines of their logs. Pure."""

import datetime
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from dart_streams.config.text import MALFORMED

EVENT = "waiting for the "
MOST_REASON = 200


class WaitLine(msgspec.Struct):
    """A line of a process that waits for a service: since when, for how long at most (seconds), and why."""

    event: str
    timestamp: datetime.datetime
    reason: str = ""
    at_most_s: float | None = None
    left_s: float | None = None

    @property
    def end_s(self) -> float:
        """The time after which the process no longer waits, in seconds since the epoch."""
        return self.timestamp.timestamp() + (self.at_most_s or self.left_s or 0.0)


class ServiceWait(NamedTuple):
    """A process that waits for a service, and the service's fault."""

    process: str
    service: str
    reason: str


def newest_wait(process: str, lines: Iterable[str], since_s: float, now_s: float) -> ServiceWait | None:
    """Return the wait that a process began since a time (seconds since the epoch), by its log, if it may still last."""
    for line in reversed(list(lines)):
        try:
            said = msgspec.json.decode(line, type=WaitLine)
        except MALFORMED:
            continue
        if said.event.startswith(EVENT) and said.timestamp.timestamp() >= since_s and said.end_s >= now_s:
            return ServiceWait(process, said.event.removeprefix(EVENT), said.reason[:MOST_REASON])
    return None


def find_waits(logs: Mapping[str, Iterable[str]], since_s: float, now_s: float) -> list[ServiceWait]:
    """Return the waits of processes by the newest lines of their logs."""
    found = (newest_wait(process, lines, since_s, now_s) for process, lines in logs.items())
    return [wait for wait in found if wait is not None]


def describe_waits(waits: Iterable[ServiceWait]) -> str:
    """Return which processes wait for which service and why, empty without any."""
    by_service: dict[str, list[ServiceWait]] = {}
    for wait in waits:
        by_service.setdefault(wait.service, []).append(wait)
    return "; ".join(
        f"{', '.join(wait.process for wait in of_service)} waiting for the {service} ({of_service[0].reason})"
        for service, of_service in by_service.items()
    )
