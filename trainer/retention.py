"""How long published versions stay, beyond the number that is configured. Pure."""

import math
from collections.abc import Iterable

from topics.weights_serving import WeightsServing


def needed_from(serving: Iterable[WeightsServing], now_ms: int, liveness_ms: int) -> float:
    """Return the oldest version that a live rollout worker serves or may be fetching; infinity if there is no worker.

    A worker that serves version v, or has failed to load it, may be fetching any newer one. One whose ``alive_ms`` is
    more than ``liveness_ms`` before ``now_ms`` is dead: when it comes back it takes the newest.
    """
    return min((record.tried for record in serving if now_ms - record.alive_ms <= liveness_ms), default=math.inf)
