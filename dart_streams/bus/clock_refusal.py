"""Errors for records whose timestamp the broker refuses: the clock, and its offset. Pure.

Topics bound the offset of record timestamps (``topology.clock_ms``). The broker's message contains the accepted range,
and so the broker's clock.
"""

import re
from datetime import UTC, datetime
from typing import NamedTuple, Self

from dart_streams.errors import UserError
from topics.topic import HOUR_MS

SAID = re.compile(r"Timestamp (-?\d+) of message .* within \[(-?\d+), (-?\d+)\]")


class ClockRefused(UserError):
    """The clock of the machine is too far off the broker's, which refuses all its records."""

    exit_code = 3


class AcceptedTimes(NamedTuple):
    """Timestamps that a broker accepts (epoch ms)."""

    earliest_ms: int
    latest_ms: int

    @classmethod
    def of(cls, message: str) -> Self | None:
        """Parse a broker's message; return None if it has no range."""
        said = SAID.search(message)
        return cls(int(said[2]), int(said[3])) if said else None

    @property
    def broker_ms(self) -> int:
        """The broker's clock: the middle of the range, or its end less Kafka's own bound if the past is unbounded."""
        return (self.earliest_ms + self.latest_ms) // 2 if self.earliest_ms > 0 else self.latest_ms - HOUR_MS

    def has(self, at_ms: int) -> bool:
        """Return whether the broker accepts this timestamp."""
        return self.earliest_ms <= at_ms <= self.latest_ms


def is_accepted_now(message: str, now_ms: int) -> bool:
    """Return whether the refused record would be accepted with the present time.

    A record is stamped before it is sent; the machine may sleep or its clock change in between.
    """
    accepted = AcceptedTimes.of(message)
    return accepted is not None and accepted.has(now_ms)


def clock_refused(servers: str, topic: str, message: str, now_ms: int) -> ClockRefused:
    """Return the error with this machine's clock and its offset from the broker's."""
    accepted = AcceptedTimes.of(message)
    off = "which is not the time of the broker" if accepted is None else describe_gap(accepted, now_ms)
    return ClockRefused(
        f"the broker at {servers} refuses the time of records on {topic}: the clock of this machine says "
        f"{format_time(now_ms)}, {off}. Set the clock (of this machine, or the broker's) by NTP; the processes whose "
        "clocks are right go on"
    )


def describe_gap(accepted: AcceptedTimes, now_ms: int) -> str:
    """Return the offset of a clock from the broker's, as text."""
    off_ms = now_ms - accepted.broker_ms
    bound_ms = accepted.latest_ms - accepted.broker_ms
    side = "ahead of" if off_ms > 0 else "behind"
    return f"{format_duration(abs(off_ms))} {side} the broker's; at most {format_duration(bound_ms)} is taken"


def format_time(at_ms: int) -> str:
    """Return an epoch time in ms as text; times outside the calendar as a number."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms since 1970"


def format_duration(duration_ms: int) -> str:
    """Return a duration as days, hours and minutes, or as seconds below two minutes."""
    if duration_ms < 120_000:
        return f"{duration_ms / 1000:.0f} s"
    minutes = round(duration_ms / 60_000)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = ((days, "d"), (hours, "h"), (minutes, "min"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)
