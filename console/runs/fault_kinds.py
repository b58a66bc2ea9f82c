"""Counts of episodes that ended with a fault by kind, the common part of their reasons. Pure."""

import re
from collections import Counter
from typing import NamedTuple

import msgspec

KINDS = 100
"""Most kinds with their own count."""
KIND_CHARACTERS = 100
OTHER = "other kinds"
NUMBERS = re.compile(r"\d+")


def fault_kind(reason: str) -> str:
    """Return the text of a reason before its first colon and space, with N in place of numbers."""
    return NUMBERS.sub("N", reason.partition(": ")[0])[:KIND_CHARACTERS].strip() or "no reason"


class FaultKinds(msgspec.Struct):
    """Number of faults by kind."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)

    def add(self, reason: str) -> None:
        """Count a fault."""
        kind = fault_kind(reason)
        self.counts[kind if kind in self.counts or len(self.counts) < KINDS else OTHER] += 1

    @property
    def total(self) -> int:
        """The number of faults of all kinds."""
        return self.counts.total()

    def most(self, count: int) -> dict[str, int]:
        """Return the most frequent kinds."""
        return dict(self.counts.most_common(count))


class EnvFaults(NamedTuple):
    """Number of episodes of one task on one host that a fault ended, and the newest reason."""

    episodes: int
    reason: str
