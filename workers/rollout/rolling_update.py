"""The rolling update: each worker decides from all records of weights-serving whether it may switch weights now.

A worker *has tried* version v if it serves v or newer, or has reported that it failed to load v. Workers switch in the
order of (newest version tried, worker id), at most ``width`` at a time; those that have tried the version are not
waited for. A worker reports a version only after it serves it, so a stale view of the others makes a worker wait
longer, never switch too early: at least N - ``width`` of N workers generate at any time. A retry of a version that
failed is not counted against the width: what fails is the fetch, during which the old weights keep serving.
"""

from collections.abc import Mapping

from topics.weights_serving import WeightsServing


def may_switch(
    me: str, target: int, serving: Mapping[str, WeightsServing], now_ms: int, liveness_ms: int, width: int
) -> bool:
    """Return whether worker ``me`` may switch to version ``target`` now.

    Parameters
    ----------
    serving
        The newest record of each worker, its own included.
    now_ms, liveness_ms
        A worker whose ``alive_ms`` is more than ``liveness_ms`` before ``now_ms`` is dead: it is not waited for.
    width
        Maximum number of workers that switch at the same time.
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
