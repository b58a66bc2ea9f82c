"""How long published versions stay for those who may be fetching them."""

import math

from topics.weights_serving import WeightsServing
from trainer.state import needed_from


def worker(name: str, version: int, failed: int | None = None) -> WeightsServing:
    return WeightsServing(worker_id=name, version=version, since_ms=0, alive_ms=0, failed_version=failed)


def test_without_workers_nothing_is_needed():
    assert needed_from([], set()) == math.inf


def test_the_slowest_live_worker_decides():
    assert needed_from([worker("a", 7), worker("b", 4), worker("c", 9)], {"a", "b", "c"}) == 4


def test_a_dead_worker_needs_nothing():
    assert needed_from([worker("dead", 2), worker("live", 5)], {"live"}) == 5


def test_a_worker_that_could_not_load_a_version_is_done_with_it():
    assert needed_from([worker("a", 2, failed=6)], {"a"}) == 6
