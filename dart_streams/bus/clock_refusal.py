"""A record whose time the broker refuses: which clock is off, and by how much. Pure.

Topics bound how far the time of a record may be off the broker's clock (``topology.clock_ms``). The broker's message
says which times it takes, and so what its own clock is.
"""

import re
from datetime import UTC, datetime
from typing import NamedTuple, Self

from dart_streams.errors import UserError
from topics.topic import HOUR_MS

SAID = re.compile(r"Timestamp (-?\d+) of message .* within \[(-?\d+), (-?\d+)\]")


class ClockRefused(UserError):
    """The clock of this machine is too far off the broker's: none of its records is taken."""

    exit_code = 3


class AcceptedTimes(NamedTuple):
    """The times that a broker takes (epoch ms)."""

    earliest_ms: int
    latest_ms: int

    @classmethod
    def of(cls, message: str) -> Self | None:
        """Return what a broker's message says; None if it does not say it."""
        said = SAID.search(message)
        return cls(int(said[2]), int(said[3])) if said else None

    @property
    def broker_ms(self) -> int:
        """The broker's clock: the middle; where the past has no bound, the end less Kafka's own bound of the future."""
        return (self.earliest_ms + self.latest_ms) // 2 if self.earliest_ms > 0 else self.latest_ms - HOUR_MS

    def has(self, at_ms: int) -> bool:
        """Say whether the broker takes a record of this time."""
        return self.earliest_ms <= at_ms <= self.latest_ms


def is_accepted_now(message: str, now_ms: int) -> bool:
    """Say whether the broker would take the refused record with the present time.

    A record is stamped before it is sent, and the machine may have slept, or its clock been set, in between.
    """
    accepted = AcceptedTimes.of(message)
    return accepted is not None and accepted.has(now_ms)


def clock_refused(servers: str, topic: str, message: str, now_ms: int) -> ClockRefused:
    """Return the error that names this machine's clock and by how much it is off the broker's."""
    accepted = AcceptedTimes.of(message)
    off = "which is not the time of the broker" if accepted is None else describe_gap(accepted, now_ms)
    return ClockRefused(
        f"the broker at {servers} refuses the time of records on {topic}: the clock of this machine says "
        f"{format_time(now_ms)}, {off}. Set the clock (of this machine, or the broker's) by NTP; the processes whose "
        "clocks are right go on"
    )


def describe_gap(accepted: AcceptedTimes, now_ms: int) -> str:
    """Return by how much a clock is off the broker's, in words."""
    off_ms = now_ms - accepted.broker_ms
    bound_ms = accepted.latest_ms - accepted.broker_ms
    side = "ahead of" if off_ms > 0 else "behind"
    return f"{format_duration(abs(off_ms))} {side} the broker's; at most {format_duration(bound_ms)} is taken"


def format_time(at_ms: int) -> str:
    """Return a time (epoch ms) in words, also one that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms since 1970"


def format_duration(duration_ms: int) -> str:
    """Return a duration in words: days, hours and minutes, or seconds of less than two minutes."""
    if duration_ms < 120_000:
        return f"{duration_ms / 1000:.0f} s"
    minutes = round(duration_ms / 60_000)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = ((days, "d"), (hours, "h"), (minutes, "min"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)
