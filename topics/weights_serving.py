"""weights-serving: the served version of each rollout worker, repeated as a heartbeat."""

import msgspec

from topics.topic import Topic
from topics.values import Digest, EpochMs, Milliseconds, Name, Prose, Version


class WeightsServing(msgspec.Struct, frozen=True, kw_only=True):
    """Worker ``worker_id`` serves ``version`` since ``since_ms`` and was alive at ``alive_ms`` (epoch milliseconds).

    Both times are of its own clock and for people; readers judge liveness by the arrival of records.

    ``failed_version`` and ``error`` are the newest version that failed to load, if any, and the reason. ``pause_ms`` is
    the pause of generation for the last switch. ``sha256`` is the digest of the loaded weights, as in
    :class:`~topics.weights.WeightVersion`; engines without weights omit it.
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
        """The newest version that this worker serves or failed to load."""
        return max(self.version, -1 if self.failed_version is None else self.failed_version)


TOPIC = Topic(name="weights-serving", event=WeightsServing, key="worker_id", cleanup="compact", shortest_ms=None)
