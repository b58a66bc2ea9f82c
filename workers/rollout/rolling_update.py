"""The rolling rule: who may switch weights now, decided by each worker from what all of them say on weights-serving.

A worker *has tried* version v if it serves v or newer, or has said that it failed to load v. Workers switch in the
order of (newest version tried, worker id), at most ``width`` at a time; whoever is up to date or has failed is not
waited for. A worker announces a version only after it serves it, so a late view of workers that one knows makes a
worker wait longer, never switch too early: at least N - ``width`` of N workers generate at any time. Only a second
try of a version that failed is not counted against the width: what fails is the fetch, during which the old weights
keep serving.
"""

from collections.abc import Mapping

from topics.weights_serving import WeightsServing


def may_switch(
    me: str, target: int, serving: Mapping[str, WeightsServing], now_ms: int, liveness_ms: int, width: int
) -> bool:
    """Say whether worker ``me`` may switch to version ``target`` now.

    Parameters
    ----------
    serving
        The newest record of each worker, its own included.
    now_ms, liveness_ms
        A worker whose ``alive_ms`` is more than ``liveness_ms`` before ``now_ms`` is dead and not waited for.
    width
        How many workers may switch at the same time.
    """
    own = (serving[me].tried, me) if me in serving else (-1, me)
    ahead = [
        record
        for worker_id, record in serving.items()
        if worker_id != me
        and now_ms - record.alive_ms <= liveness_ms
        and record.tried < target
        and (record.tried, worker_id) < own
    ]
    return len(ahead) < width
