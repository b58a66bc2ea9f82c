"""Weight versions: the number an incarnation starts at, and how long published ones are kept. Pure."""

import math
from collections.abc import Iterable

from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing


def needed_from(serving: Iterable[WeightsServing], now_ms: int, liveness_ms: int) -> float:
    """Return the oldest version that a live rollout worker serves or may be fetching; infinity if there is no worker.

    A worker that serves version v, or has failed to load it, may be fetching any newer one. One whose ``alive_ms`` is
    more than ``liveness_ms`` before ``now_ms`` is dead: when it comes back it takes the newest.
    """
    return min((record.tried for record in serving if now_ms - record.alive_ms <= liveness_ms), default=math.inf)


def first_version(restored: int | None, newest: WeightVersion | None, same: bool) -> int:
    """Return the version under which an incarnation announces the weights it starts from.

    Parameters
    ----------
    restored
        The version of the checkpoint it goes on from; None if it starts from the initial weights.
    newest
        The newest version announced before it, if any.
    same
        Whether its weights are those of ``newest``.

    Returns
    -------
    version
        That of ``newest`` for the same weights. That of the checkpoint if the trainer before died between checkpoint
        and announcement. Otherwise the next free number: a number never means two sets of weights.
    """
    if newest is None:
        return restored or 0
    if same:
        return newest.version
    if restored is not None and restored > newest.version:
        return restored
    return newest.version + 1
