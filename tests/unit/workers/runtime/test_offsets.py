"""The done prefix: a commit never passes an unfinished record, and reaches everything once all below is done."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.runtime.in_flight import Offsets, TrackedOffset

ascending = st.lists(st.integers(0, 1000), min_size=1, max_size=40, unique=True).map(sorted)


@given(offsets=ascending, data=st.data())
def test_the_commit_is_the_lowest_unfinished_record(offsets, data):
    prefix: Offsets[int] = Offsets()
    prefix.assign([0])
    for offset in offsets:
        prefix.take(TrackedOffset(0, offset))
    under_way = set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        assert prefix.ready() == {0: min(under_way)}
        prefix.finish(TrackedOffset(0, offset))
        under_way.discard(offset)
    assert prefix.ready() == {0: offsets[-1] + 1}


def test_a_commit_is_offered_until_the_broker_has_it_and_then_no_more():
    offsets: Offsets[int] = Offsets()
    offsets.assign([0])
    offsets.take(TrackedOffset(0, 7))
    offsets.finish(TrackedOffset(0, 7))
    assert offsets.commits() == {0: 8} == offsets.commits()
    offsets.committed({0: 8})
    assert offsets.commits() == {}


LOG = [offset for offset in range(500) if offset % 7 not in (3, 4)]
"""The offsets that hold a record: a topic has holes."""


class Broker(RuleBasedStateMachine):
    """One partition of a topic, read by one consumer that loses and regains it at any time."""

    def __init__(self):
        super().__init__()
        self.offsets: Offsets[str] = Offsets()
        self.committed = 0
        self.position = 0
        self.owned = False
        self.started: set[int] = set()
        self.finished: set[int] = set()

    @precondition(lambda self: not self.owned)
    @rule()
    def assign(self):
        self.offsets.assign(["p"])
        self.position = self.committed
        self.owned = True

    @precondition(lambda self: self.owned)
    @rule(known=st.booleans())
    def revoke(self, known):
        if known:
            self.commit()
        self.offsets.revoke(["p"])
        self.owned = False

    @precondition(lambda self: self.owned)
    @rule()
    def take(self):
        place = TrackedOffset("p", next(offset for offset in LOG if offset >= self.position))
        assert self.offsets.take(place)
        self.started.add(place.offset)
        self.position = place.offset + 1
        if place.offset in self.finished:
            self.offsets.finish(place)

    @precondition(lambda self: self.started - self.finished)
    @rule(data=st.data())
    def finish(self, data):
        offset = data.draw(st.sampled_from(sorted(self.started - self.finished)))
        self.offsets.finish(TrackedOffset("p", offset))
        self.finished.add(offset)

    @rule()
    def commit(self):
        ready = self.offsets.commits()
        if "p" in ready:
            self.committed = ready["p"]
            self.offsets.committed(ready)

    @invariant()
    def nothing_unfinished_is_committed(self):
        assert all(offset >= self.committed for offset in self.started - self.finished)


TestBroker = Broker.TestCase
TestBroker.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
