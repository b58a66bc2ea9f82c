"""Faults of the environment counted by kind: what the reasons of alike faults have in common. Pure."""

import re
from collections import Counter
from typing import NamedTuple

import msgspec

KINDS = 100
"""Kinds that are counted each for itself; what is beyond them is one kind."""
KIND_CHARACTERS = 100
OTHER = "other kinds"
NUMBERS = re.compile(r"\d+")


def fault_kind(reason: str) -> str:
    """Return the kind of a reason: what precedes its first colon with a space, and N in place of numbers."""
    return NUMBERS.sub("N", reason.partition(": ")[0])[:KIND_CHARACTERS].strip() or "no reason"


class FaultKinds(msgspec.Struct):
    """How many faults there were of each kind."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)

    def add(self, reason: str) -> None:
        """Count a fault."""
        kind = fault_kind(reason)
        self.counts[kind if kind in self.counts or len(self.counts) < KINDS else OTHER] += 1

    def most(self, count: int) -> dict[str, int]:
        """Return the kinds of most faults."""
        return dict(self.counts.most_common(count))


class EnvFaults(NamedTuple):
    """Episodes of one task on one host that ended by a fault of the environment, and the newest one's reason."""

    episodes: int
    reason: str
