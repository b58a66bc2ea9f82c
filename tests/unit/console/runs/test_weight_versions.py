"""Served weights against published ones: every announcement has one verdict, and none is lost in the count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from console.runs.weight_versions import ServedWeights, served_weights
from tests import events
from tests.unit.console.runs.test_run_state import fold
from topics.weights import WeightPart, WeightVersion

FULL = WeightPart(version=0, uri="v0", sha256="a" * 64)


def published(version, sha256, kind="full", epoch=1):
    return events.weight_version(
        version,
        uri=f"v{version}",
        sha256=sha256,
        epoch=epoch,
        kind=kind,
        file_sha256="" if kind == "full" else "f" * 64,
        base=[] if kind == "full" else [FULL],
    )


def serving(version, sha256=UNSET, worker_id="rollout-0", alive_ms=1):
    return events.weights_serving(version, worker_id=worker_id, alive_ms=alive_ms, sha256=sha256)


def test_versions_of_each_worker_are_counted_by_verdict():
    state = fold(
        *(published(0, "a" * 64), published(1, "b" * 64, "delta"), published(2, "c" * 64, "adapter")),
        *(serving(0, "a" * 64), serving(1, "b" * 64), serving(1, "b" * 64, "rollout-1"), serving(2, "d" * 64)),
        *(serving(2, worker_id="rollout-1"), serving(3, "e" * 64)),
    )
    counts = {"announced": 6, "equal": 3, "different": 1, "without_digest": 1, "unpublished": 1}
    by_kind = {"delta": 2, "full": 1}, {"adapter": 1, "delta": 1, "full": 1}
    assert served_weights(state) == ServedWeights(**counts, equal_by_kind=by_kind[0], published_by_kind=by_kind[1])


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        ([published(1, "b" * 64), serving(1, "b" * 64), serving(1, "d" * 64, alive_ms=2)], (1, 0, 1, {})),
        ([published(1, "b" * 64, epoch=2), published(1, "d" * 64, epoch=1), serving(1, "d" * 64)], (1, 0, 1, {})),
        ([published(1, "b" * 64, "delta"), serving(1, "b" * 64), published(1, "b" * 64)], (1, 1, 0, {"full": 1})),
    ],
    ids=["another digest in a later heartbeat", "one of a fenced trainer", "published again as another kind"],
)
def test_the_newest_digests_count(events, counts):
    found = served_weights(fold(*events))
    assert (found.announced, found.equal, found.different, found.equal_by_kind) == counts


DIGESTS = st.sampled_from(["a" * 64, "b" * 64])
VERSIONS = st.integers(0, 4)


@given(
    st.lists(st.tuples(VERSIONS, DIGESTS)),
    st.lists(st.tuples(VERSIONS, st.one_of(st.just(UNSET), DIGESTS), st.sampled_from(["r0", "r1"]))),
    st.randoms(use_true_random=False),
)
def test_verdicts_sum_to_the_announcements_in_any_order_of_topics(versions, announced, rng):
    weights = [published(*version) for version in versions]
    announcements = [serving(*worker) for worker in announced]
    counts = served_weights(fold(*weights, *announcements))
    assert counts.announced == len({(version, worker) for version, _, worker in announced})
    assert counts.equal + counts.different + counts.without_digest + counts.unpublished == counts.announced
    assert sum(counts.equal_by_kind.values()) == counts.equal
    mixed = list(announcements)
    for event in weights:  # Each topic keeps its own order, wherever the other's records come between.
        mixed.insert(rng.randint(0, len(mixed)), event)
    in_order = iter(weights)
    mixed = [next(in_order) if isinstance(event, WeightVersion) else event for event in mixed]
    assert served_weights(fold(*mixed)) == counts
