"""The experience pool: a few successes of each task, for groups in which every rollout failed."""

import msgspec

from dart_streams import stateless_random


class PooledSuccess(msgspec.Struct, frozen=True):
    """A trajectory that solved its task, by demonstration or online; ``steps`` counts actions."""

    trajectory_id: str
    order_id: str
    reward: float
    steps: int


def add(pool: list[PooledSuccess], success: PooledSuccess, size: int, demonstration: bool) -> None:
    """Store a success, oldest first.

    Demonstrations fill free places only; online successes replace the oldest. A second
    finish of the same order is not stored again.
    """
    if size < 1 or any(stored.order_id == success.order_id for stored in pool):
        return
    if len(pool) < size:
        pool.append(success)
    elif not demonstration:
        del pool[: len(pool) - size + 1]
        pool.append(success)


def draw(pool: list[PooledSuccess], task_id: str, group_id: str, seed: int) -> PooledSuccess | None:
    """Return the success that this group takes, the same one for the same pool; None from an empty pool."""
    if not pool:
        return None
    return pool[stateless_random.number("pool", seed, task_id, group_id) % len(pool)]
