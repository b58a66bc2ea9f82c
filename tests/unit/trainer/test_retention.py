"""How long published versions stay for those who may be fetching them."""

import math

from tests import events
from topics.weights import WeightPart, WeightVersion
from topics.weights_serving import WeightsServing
from trainer.state import asks_for_whole, oldest_needed, versions_to_keep


def worker(name: str, version: int, failed: int | None = None) -> WeightsServing:
    return events.weights_serving(version, worker_id=name, failed_version=failed)


def test_the_slowest_live_worker_decides_which_version_is_needed():
    assert oldest_needed([worker("a", 7), worker("b", 4), worker("c", 9)], {"a", "b", "c"}) == 4
    assert oldest_needed([worker("dead", 2), worker("live", 5)], {"live"}) == 5
    assert oldest_needed([worker("a", 2, failed=6)], {"a"}) == 6, "it is done with what it could not load"
    assert oldest_needed([], set()) == math.inf


def version(number: int, *base: int) -> WeightVersion:
    parts = [WeightPart(version=place, uri=f"w/{place}", sha256=str(place)) for place in base]
    return events.weight_version(
        number, uri=f"w/{number}", sha256=str(number), kind="delta" if base else "full", base=parts
    )


CHAINS = [version(0), version(1, 0), version(2, 0, 1), version(3), version(4, 3), version(5, 3, 4)]


def kept(keep: int, oldest: float) -> tuple[list[int], list[int]]:
    found = versions_to_keep(CHAINS, keep, oldest)
    return [one.version for one in found], sorted({part.version for one in found for part in one.parts})


def test_a_version_keeps_what_it_is_made_of():
    assert kept(1, math.inf) == ([5], [3, 4, 5])
    assert kept(1, 2) == ([2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
    assert kept(3, math.inf) == ([3, 4, 5], [3, 4, 5])
    assert kept(99, math.inf)[0] == [0, 1, 2, 3, 4, 5]


def test_a_live_worker_that_failed_a_delta_asks_for_a_whole_version():
    def asks(newest: WeightVersion, failed: int | None, alive: bool = True) -> bool:
        return asks_for_whole(newest, [worker("a", 0, failed)], {"a"} if alive else set())

    assert asks(CHAINS[5], failed=5)
    assert asks(CHAINS[5], failed=4)
    assert not asks(CHAINS[5], failed=3)
    assert not asks(CHAINS[5], failed=None)
    assert not asks(CHAINS[5], failed=5, alive=False)
    assert not asks(CHAINS[3], failed=3)
