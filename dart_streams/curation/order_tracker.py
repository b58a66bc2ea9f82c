"""Order ids, and the open orders of each group.

Difficulty, dispatch and groups track orders alike, so they agree without messages on repeated finishes, complete groups
and abandoned groups.
"""

import re
from typing import Literal, NamedTuple

import msgspec

from dart_streams.config import Config
from dart_streams.curation.reducer import InvalidEvent
from topics.trajectories import Trajectory
from topics.transitions import next_attempt, outcome_stage
from topics.values import OutcomeKind

ORDER_ID = re.compile("g([0-9]{1,18})/([0-9]{1,18})/([0-9]{1,18})")
"""Numbers of up to 18 digits fit into 63 bits; a state with larger ones could not be encoded."""
ENDED = -1
"""Attempt number of a sample that has ended."""
ORDER_ATTEMPTS = 3
"""Attempts of an order: an environment that fails three times in a row is broken, not unlucky."""
ORDERS_PER_SLOT = 2
"""Open orders a slot: one in progress, and the next."""

FinishKind = Literal["repeated", "cancelled", "ordered", "exhausted", "rewarded"]
"""Effect of a finish on its order: none if repeated, else the order's next stage (``transitions.ORDER``)."""


class Limits(NamedTuple):
    """Maximum attempts of an order, and the age at which a group is abandoned, in group numbers."""

    attempts: int
    horizon: int

    @classmethod
    def of(cls, config: Config) -> "Limits":
        """Return the limits of a deployment; the horizon is far beyond the open groups of dispatch."""
        horizon = max(256, 8 * order_backlog(config), 2 * config.trainer.groups_per_step)
        return cls(attempts=ORDER_ATTEMPTS, horizon=horizon)


class OrderKey(NamedTuple):
    """The parts of an order id: group number, sample, attempt."""

    number: int
    sample: int
    attempt: int


def order_backlog(config: Config) -> int:
    """Return the target number of open orders: a few for each slot of all environment workers."""
    return max(1, ORDERS_PER_SLOT * config.env.workers * config.env.slots)


def format_group_id(number: int) -> str:
    """Return the id of group ``number``, e.g. ``g000041``."""
    return f"g{number:06d}"


def format_order_id(key: OrderKey) -> str:
    """Return the id of an order, e.g. ``g000041/3/0``."""
    return f"g{key.number:06d}/{key.sample}/{key.attempt}"


def parse_order_id(order_id: str) -> OrderKey | None:
    """Return the parts of a training order's id; None for any other id."""
    numbers = ORDER_ID.fullmatch(order_id)
    return OrderKey(*map(int, numbers.groups())) if numbers else None


def order_key_of(trajectory: Trajectory) -> OrderKey:
    """Return the key of a training trajectory's order; raise InvalidEvent if dispatch cannot have placed it."""
    key = parse_order_id(trajectory.order_id)
    if key is None or key.sample >= trajectory.group_size:
        raise InvalidEvent(
            f"trajectory {trajectory.trajectory_id}: order {trajectory.order_id!r} in a group of "
            f"{trajectory.group_size} is not one of dispatch's, which look like g000041/3/0 (group, sample, attempt)"
        )
    return key


class OrderTracker(msgspec.Struct):
    """The current attempt of each sample of each open group.

    The horizon bounds memory: closed groups keep only their number, as long as it is needed to detect repeated
    finishes.
    """

    newest: int = -1
    open: dict[int, list[int]] = {}
    closed: set[int] = set()

    def open_up_to(self, number: int, size: int, horizon: int) -> dict[int, int]:
        """Open group ``number`` with ``size`` samples if it is new, and remove groups behind the horizon.

        Return the abandoned (open) groups among those, with their number of open samples.
        """
        if number <= self.newest - horizon or number in self.open or number in self.closed:
            return {}
        self.open[number] = [0] * size
        if number < self.newest:
            return {}
        self.newest, edge = number, number - horizon
        behind = sorted(old for old in self.open if old <= edge)
        abandoned = {old: sum(attempt != ENDED for attempt in self.open.pop(old)) for old in behind}
        if len(self.closed) > 2 * horizon:
            self.closed = {old for old in self.closed if old > edge}
        return abandoned

    def admit(self, key: OrderKey, size: int, outcome: OutcomeKind, horizon: int) -> dict[int, int]:
        """Open the group of a finish as :meth:`open_up_to` does; raise InvalidEvent if dispatch cannot have opened it.

        Dispatch numbers groups in order, with far fewer than ``horizon`` open. A number further ahead is foreign, and
        would abandon every open group. Only dispatch reports ``lost`` orders, so their number is close to the open
        ones, even if a foreign record misled this tracker.
        """
        unknown = key.number not in self.open and key.number not in self.closed
        if unknown and outcome == "lost" and key.number <= self.newest - horizon:
            self.newest = key.number
        elif unknown and outcome != "lost" and key.number > self.newest + horizon:
            raise InvalidEvent(
                f"order {format_order_id(key)}: group {key.number} is more than {horizon} ahead of the newest known "
                f"({self.newest}): dispatch has not given it out"
            )
        return self.open_up_to(key.number, size, horizon)

    def ended_attempt(self, key: OrderKey, attempts: int) -> OrderKey:
        """Return the newest ended attempt of an order's sample, the last one if the sample has ended."""
        samples = self.open.get(key.number, ())
        current = samples[key.sample] if key.sample < len(samples) else ENDED
        return key._replace(attempt=attempts - 1 if current == ENDED else current - 1)

    def finish(self, key: OrderKey, outcome: OutcomeKind, attempts: int) -> FinishKind:
        """Apply the finish of an order. A group closes with its last open sample."""
        samples = self.open.get(key.number)
        if samples is None or key.sample >= len(samples):
            return "repeated"
        current = samples[key.sample]
        if current == ENDED or key.attempt < current:
            return "repeated"
        stage = outcome_stage(outcome)
        if stage == "cancelled":
            return "cancelled"
        retry = next_attempt(outcome, key.attempt, attempts)
        samples[key.sample] = ENDED if retry is None else retry
        if max(samples) == ENDED:
            del self.open[key.number]
            self.closed.add(key.number)
        if stage == "rewarded":
            return "rewarded"
        return "exhausted" if retry is None else "ordered"
