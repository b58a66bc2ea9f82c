"""The whole ``weights`` topic, for those who need its past: the trainer at its start, and an export."""

import contextlib

from dart_streams.bus import sync_clients
from dart_streams.bus.codec import Undecodable, decode
from dart_streams.config import Bus
from topics import weights
from topics.weights import WeightVersion


def read(bus: Bus) -> list[WeightVersion]:
    """Return every record of ``weights`` up to its present end; those that do not decode are left out.

    Raises
    ------
    ServiceUnavailable
        If the broker does not give them within ``bus.wait_s``.
    """
    announced: list[WeightVersion] = []
    with sync_clients.TopicReader(bus, "weights-log", weights.TOPIC) as records:
        for record in records.read_to_end():
            with contextlib.suppress(Undecodable):
                announced.append(decode(weights.TOPIC, record.value, record.headers))
    return announced
