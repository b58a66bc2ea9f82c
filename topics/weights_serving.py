"""weights-serving: which version each rollout worker serves, repeated as a heartbeat."""

import msgspec

from topics.topic import Topic
from topics.values import Digest, EpochMs, Milliseconds, Name, Prose, Version


class WeightsServing(msgspec.Struct, frozen=True, kw_only=True):
    """Worker ``worker_id`` serves ``version`` since ``since_ms`` and was alive at ``alive_ms`` (epoch milliseconds).

    Both are of its own clock, for people: who is alive is judged by when records arrive. Each heartbeat has another
    ``alive_ms``.

    ``failed_version`` and ``error`` are the newest version that it failed to load, if any, and the reason; ``pause_ms``
    is how long generation was paused for the last switch. ``sha256`` is the digest of the weights that it serves, as
    :class:`~topics.weights.WeightVersion` has it, computed from what was loaded; left out by engines without weights.
    """

    worker_id: Name
    version: Version
    since_ms: EpochMs
    alive_ms: EpochMs
    failed_version: Version | None = None
    error: Prose | None = None
    pause_ms: Milliseconds | None = None
    sha256: Digest | msgspec.UnsetType = msgspec.UNSET

    @property
    def tried(self) -> int:
        """The newest version that this worker has tried to serve: it serves it, or failed to load it."""
        return max(self.version, -1 if self.failed_version is None else self.failed_version)


TOPIC = Topic(name="weights-serving", event=WeightsServing, key="worker_id", cleanup="compact", retention_ms=None)
