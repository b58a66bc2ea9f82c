"""Orders: their names, when a fault is ordered again, and the book of what is still to come of each group.

Difficulty, dispatch and groups keep the same book, so that they agree on what a second finish of an order is, on when a
group is complete and on when it is given up, without telling each other.
"""

from typing import Literal, NamedTuple

import msgspec

from dart_streams.config import Config
from dart_streams.curation.reducer import InvalidEvent
from topics.trajectories import Trajectory
from topics.values import FAULTS, OutcomeKind

ENDED = -1
"""The attempt of a sample that has ended."""
ORDER_ATTEMPTS = 3
"""Tries of an order in all: an environment that fails three times in a row is broken, not unlucky."""
ORDERS_PER_SLOT = 2
"""Open orders for each slot: one under way, and one for when that ends."""

Ending = Literal["repeated", "cancelled", "again", "given up", "rewarded"]
"""What a finish means: seen before; comes once more by itself; ordered again; no more tries; it has its reward."""


class Limits(NamedTuple):
    """``attempts`` tries an order in all; a group ``horizon`` numbers behind the newest one is given up."""

    attempts: int
    horizon: int

    @classmethod
    def of(cls, config: Config) -> "Limits":
        """Return the limits of a deployment: the horizon is far beyond what dispatch keeps open at a time."""
        return cls(attempts=ORDER_ATTEMPTS, horizon=max(256, 8 * backlog(config)))


class OrderKey(NamedTuple):
    """Where an order belongs: attempt ``attempt`` of sample ``sample`` of group ``number``."""

    number: int
    sample: int
    attempt: int


def backlog(config: Config) -> int:
    """Return how many orders dispatch keeps open: a few for each slot of all environment workers."""
    return max(1, ORDERS_PER_SLOT * config.env.workers * config.env.slots)


def group_name(number: int) -> str:
    """Return the id of group ``number``."""
    return f"g{number:06d}"


def order_name(number: int, sample: int, attempt: int) -> str:
    """Return the id of an order, for instance ``g000041/3/0``."""
    return f"g{number:06d}/{sample}/{attempt}"


def place(order_id: str) -> OrderKey | None:
    """Return what the id of a training order says; None for the id of another kind of order."""
    group, _, rest = order_id.partition("/")
    sample, _, attempt = rest.partition("/")
    if group[:1] != "g" or not (group[1:].isdecimal() and sample.isdecimal() and attempt.isdecimal()):
        return None
    return OrderKey(int(group[1:]), int(sample), int(attempt))


def place_of(trajectory: Trajectory) -> OrderKey:
    """Return which order a training trajectory has carried out.

    Raises
    ------
    Refused
        If dispatch never gives such an order.
    """
    order = place(trajectory.order_id)
    if order is None or order.sample >= trajectory.group_size:
        raise InvalidEvent(
            f"trajectory {trajectory.trajectory_id}: order {trajectory.order_id!r} in a group of "
            f"{trajectory.group_size} is not one of dispatch's, which look like g000041/3/0 (group, sample, attempt)"
        )
    return order


def again(attempt: int, attempts: int) -> bool:
    """Say whether an order that ended in a fault at ``attempt`` (from 0) is ordered again."""
    return attempt + 1 < attempts


class OrderTracker(msgspec.Struct):
    """What is still to come: for each open group, the attempt that each sample is at.

    Memory is bounded by the horizon: of closed groups only the numbers are kept, and those only as long as a second
    finish of one of their orders can be told from a first one by nothing else.
    """

    newest: int = -1
    open: dict[int, list[int]] = {}
    closed: set[int] = set()

    def open_up_to(self, number: int, size: int, horizon: int) -> dict[int, int]:
        """Open group ``number`` of ``size`` samples if it is new.

        Return the groups that are given up for its sake, each with how many of its samples were still to come.
        """
        if number <= self.newest - horizon or number in self.open or number in self.closed:
            return {}
        self.open[number] = [0] * size
        if number < self.newest:
            return {}
        self.newest = number
        return self._forget(horizon)

    def _forget(self, horizon: int) -> dict[int, int]:
        """Forget the groups behind the horizon, the closed ones now and then; return those still open, in order."""
        edge = self.newest - horizon
        behind = sorted(number for number in self.open if number <= edge)
        given_up = {number: sum(at != ENDED for at in self.open.pop(number)) for number in behind}
        if len(self.closed) > 2 * horizon:
            self.closed = {number for number in self.closed if number > edge}
        return given_up

    def end(self, order: OrderKey, outcome: OutcomeKind, attempts: int) -> Ending:
        """Note that ``order`` has ended. A group none of whose samples is to come any more is no longer ``open``."""
        samples = self.open.get(order.number)
        if samples is None or order.sample >= len(samples):
            return "repeated"
        at = samples[order.sample]
        if at == ENDED or order.attempt < at:
            return "repeated"
        if outcome == "cancelled":
            return "cancelled"
        if outcome in FAULTS and again(order.attempt, attempts):
            samples[order.sample] = order.attempt + 1
            return "again"
        samples[order.sample] = ENDED
        if max(samples) == ENDED:
            del self.open[order.number]
            self.closed.add(order.number)
        return "given up" if outcome in FAULTS else "rewarded"
