"""Liveness of senders by the order of the log, so that a replayed log says the same. Pure, without clocks."""

import dataclasses
from collections import Counter

MISSED_BEATS = 40
"""Heartbeats of another sender since a sender's last, from which it counts as gone: 20 s of ``rollout.heartbeat_s``."""


@dataclasses.dataclass
class LogLiveness:
    """The heartbeats that each sender has missed, by the sender that sent them meanwhile.

    A sender that is alone never counts as gone, since its silence may be the broker's.
    """

    missed: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)

    def note(self, sender: str) -> None:
        """Note a sender's heartbeat."""
        for other, beats in self.missed.items():
            if other != sender:
                beats[sender] += 1
        self.missed[sender] = Counter()

    def senders(self) -> list[str]:
        """Return the senders that are not gone."""
        return [name for name, beats in self.missed.items() if max(beats.values(), default=0) < MISSED_BEATS]
