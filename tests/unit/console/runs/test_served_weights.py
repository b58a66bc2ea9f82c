"""Served weights against published ones: every announcement has one verdict, and none is lost in the count."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from dart_streams.console.runs.run_log import RecordMetadata
from dart_streams.console.runs.run_state import RunState
from dart_streams.console.runs.weight_versions import ServedWeights, served_weights
from tests import events
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


def state_of(*events):
    state = RunState()
    for offset, event in enumerate(events):
        state.apply(RecordMetadata(type(event).__name__, 0, offset, offset), event)
    return state


def test_each_worker_s_versions_are_counted_by_what_their_digests_say():
    state = state_of(
        published(0, "a" * 64),
        published(1, "b" * 64, "delta"),
        published(2, "c" * 64, "adapter"),
        serving(0, "a" * 64),
        serving(1, "b" * 64),
        serving(1, "b" * 64, "rollout-1"),
        serving(2, "d" * 64),
        serving(2, worker_id="rollout-1"),
        serving(3, "e" * 64),
    )
    assert served_weights(state) == ServedWeights(
        announced=6,
        equal=3,
        different=1,
        without_digest=1,
        unpublished=1,
        equal_by_kind={"delta": 2, "full": 1},
        published_by_kind={"adapter": 1, "delta": 1, "full": 1},
    )


def test_a_later_heartbeat_with_another_digest_of_the_same_version_is_seen():
    events = [published(1, "b" * 64), serving(1, "b" * 64), serving(1, "d" * 64, alive_ms=2)]
    found = served_weights(state_of(*events))
    assert (found.announced, found.equal, found.different) == (1, 0, 1)


def test_what_a_fenced_trainer_announced_is_no_published_digest():
    events = [published(1, "b" * 64, epoch=2), published(1, "d" * 64, epoch=1), serving(1, "d" * 64)]
    assert served_weights(state_of(*events)).different == 1


def test_a_version_that_is_published_again_whole_keeps_its_digest_and_counts_as_what_it_is_now():
    events = [published(1, "b" * 64, "delta"), serving(1, "b" * 64), published(1, "b" * 64)]
    assert served_weights(state_of(*events)).equal_by_kind == {"full": 1}


def test_a_run_without_announcements_has_no_equal_ones():
    assert served_weights(state_of(published(0, "a" * 64))).announced == 0


DIGESTS = st.sampled_from(["a" * 64, "b" * 64])
VERSIONS = st.integers(0, 4)


@given(
    st.lists(st.tuples(VERSIONS, DIGESTS)),
    st.lists(st.tuples(VERSIONS, st.one_of(st.just(UNSET), DIGESTS), st.sampled_from(["r0", "r1"]))),
    st.randoms(use_true_random=False),
)
def test_verdicts_sum_to_the_announcements_whatever_the_order_between_topics(versions, announced, chance):
    weights = [published(*one) for one in versions]
    told = [serving(*one) for one in announced]
    found = served_weights(state_of(*weights, *told))
    assert found.announced == len({(version, worker) for version, _, worker in announced})
    assert found.equal + found.different + found.without_digest + found.unpublished == found.announced
    assert sum(found.equal_by_kind.values()) == found.equal
    mixed = list(told)
    for event in weights:  # Each topic keeps its own order, wherever the other's records come between.
        mixed.insert(chance.randint(0, len(mixed)), event)
    in_order = iter(weights)
    mixed = [next(in_order) if isinstance(event, WeightVersion) else event for event in mixed]
    counts = served_weights(state_of(*mixed))
    assert counts == found
