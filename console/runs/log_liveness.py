"""Liveness of senders by the order of the log, so that a replayed log says the same. Pure, without clocks."""

import dataclasses
from collections import Counter

MISSED_BEATS = 40
"""Heartbeats of another sender since a sender's last, from which it counts as gone: 20 s of ``rollout.heartbeat_s``."""


@dataclasses.dataclass
class LogLiveness:
    """The senders that are not gone, with the heartbeats that each has missed, by the sender that sent them meanwhile.

    A sender that is alone never counts as gone, since its silence may be the broker's.
    """

    missed: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)

    def note(self, sender: str) -> None:
        """Note a sender's heartbeat, and forget those that are gone with it."""
        self.missed[sender] = Counter()
        for other in [name for name in self.missed if name != sender]:
            self.missed[other][sender] += 1
            if self.missed[other][sender] >= MISSED_BEATS:
                del self.missed[other]
