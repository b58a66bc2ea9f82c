"""How long published versions stay for those who may be fetching them."""

import math

from topics.weights_serving import WeightsServing
from trainer.state import needed_from

NOW_MS = 100_000
LIVENESS_MS = 10_000


def worker(version: int, failed: int | None = None, silent_ms: int = 0) -> WeightsServing:
    alive_ms = NOW_MS - silent_ms
    return WeightsServing(worker_id="any", version=version, since_ms=0, alive_ms=alive_ms, failed_version=failed)


def test_without_workers_nothing_is_needed():
    assert needed_from([], NOW_MS, LIVENESS_MS) == math.inf


def test_the_slowest_live_worker_decides():
    assert needed_from([worker(7), worker(4), worker(9)], NOW_MS, LIVENESS_MS) == 4


def test_a_dead_worker_needs_nothing():
    silent = [worker(2, silent_ms=LIVENESS_MS + 1), worker(5, silent_ms=LIVENESS_MS)]
    assert needed_from(silent, NOW_MS, LIVENESS_MS) == 5


def test_a_worker_that_could_not_load_a_version_is_done_with_it():
    assert needed_from([worker(2, failed=6)], NOW_MS, LIVENESS_MS) == 6
