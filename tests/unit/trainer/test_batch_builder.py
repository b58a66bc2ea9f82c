"""Rank 0 fills a batch with fresh, unseen groups; what it drops, every rank forgets to have read ahead."""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_streams.telemetry.stall_detector import StallDetector
from tests import events
from topics.curated import CuratedGroup, Member
from trainer.data.batch_builder import BatchBuilder, BatchFeed, BatchPlan
from trainer.data.consumer import Arrival, Position
from trainer.data.prefetch import Prefetcher
from trainer.data.samples import ReadyGroup
from trainer.data.shares import StepShares


def group(name: str, version: int = 5) -> CuratedGroup:
    member = events.member(name, version=version)
    return events.curated_group(name, member)


@pytest.fixture
def builder() -> BatchBuilder:
    stalls = StallDetector(structlog.get_logger(), "groups", 60.0)
    return BatchBuilder(None, Position(), 2, 1, stalls, deque())  # type: ignore[arg-type]


def plan_after(builder: BatchBuilder, *groups: CuratedGroup, version: int = 5) -> BatchPlan:
    for offset, one in enumerate(groups, start=builder.position.offsets.get(0, 0)):
        builder.admit(Arrival(0, offset, one), version)
    return builder._plan(stop=False)


def test_a_batch_is_complete_or_empty_and_keeps_what_it_has(builder: BatchBuilder) -> None:
    assert plan_after(builder, group("a")).groups == []
    plan = plan_after(builder, group("b"))
    assert [one.group_id for one in plan.groups] == ["a", "b"]
    assert plan.position.groups_consumed == 2
    assert builder.chosen == []


def test_a_repeated_group_is_trained_once_and_its_second_read_is_dropped(builder: BatchBuilder) -> None:
    plan = plan_after(builder, group("a"), group("a"), group("b"))
    assert [one.group_id for one in plan.groups] == ["a", "b"]
    assert (plan.dropped, plan.stale, plan.position.groups_consumed) == ([], 0, 2)
    again = plan_after(builder, group("a"))
    assert [one.group_id for one in again.dropped] == ["a"]


def test_a_stale_group_is_dropped_and_counted_with_the_next_batch(builder: BatchBuilder) -> None:
    waiting = plan_after(builder, group("old", version=3))
    assert ([one.group_id for one in waiting.dropped], waiting.stale) == (["old"], 0)
    plan = plan_after(builder, group("a"), group("b", version=4))
    assert (plan.dropped, plan.stale, plan.position.groups_consumed) == ([], 1, 3)


def test_a_refused_group_is_left_out_and_counted(builder: BatchBuilder) -> None:
    builder.left_out = frozenset({"b"})
    waiting = plan_after(builder, group("b"))
    assert ([one.group_id for one in waiting.dropped], waiting.refused) == (["b"], 0)
    plan = plan_after(builder, group("a"), group("c"))
    assert ([one.group_id for one in plan.groups], plan.refused, plan.stale) == (["a", "c"], 1, 0)
    assert plan.position.groups_consumed == 3, "dispatch does not wait for it"
    assert plan_after(builder, group("d"), group("e")).refused == 0


def ready(wanted: CuratedGroup) -> ReadyGroup:
    return ReadyGroup(group=wanted, samples=[], images={"s": b"1234"}, refused=Counter(), read_ms=0.0)


class Circle:
    """Rank 0 and another rank, single-threaded: arrivals are read ahead, admitted one by one, and planned at times."""

    def __init__(self) -> None:
        stalls = StallDetector(structlog.get_logger(), "groups", 60.0)
        self.ahead: deque[CuratedGroup] = deque(maxlen=4)
        self.builder = BatchBuilder(None, Position(), 2, 1, stalls, self.ahead)  # type: ignore[arg-type]
        self.reads: list[str] = []
        self.shared: defaultdict[str, list[str]] = defaultdict(list)
        """Members that the ranks read of each group."""
        self.feeds = [
            BatchFeed(SimpleNamespace(), Prefetcher(self.read, StepShares(rank, 2, 2)), builder, threading.Event())  # type: ignore[arg-type]
            for rank, builder in enumerate((self.builder, None))
        ]
        self.queue: deque[Arrival] = deque()
        self.offset = 0

    def read(self, wanted: CuratedGroup, members: Sequence[Member]) -> ReadyGroup:
        self.reads.append(wanted.group_id)
        self.shared[wanted.group_id] += [one.trajectory_id for one in members]
        return ready(wanted)

    def arrive(self, one: CuratedGroup) -> None:
        self.ahead.append(one)
        self.queue.append(Arrival(0, self.offset, one))
        self.offset += 1

    def step(self) -> None:
        """Admit until a batch is full or nothing is left, and have both ranks take it."""
        while self.queue and len(self.builder.chosen) < self.builder.size:
            self.builder.admit(self.queue.popleft(), 5)
        plan = self.builder._plan(stop=False)
        for feed in self.feeds:
            feed._gather(plan)

    def held(self) -> list[set[str]]:
        return [set(feed.prefetcher._ready) for feed in self.feeds]

    def close(self) -> None:
        for feed in self.feeds:
            feed.prefetcher.close()


@settings(max_examples=60)
@given(st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("abcdef"), st.sampled_from([1, 5]))), max_size=30))
def test_only_groups_of_the_next_batch_are_held(events):
    circle = Circle()
    try:
        for event in events:
            if event is None:
                circle.step()
            else:
                circle.arrive(group(*event))
        while circle.queue:
            circle.step()
        circle.step()
        waiting = {one.group_id for one in circle.builder.chosen}
        assert all(held <= waiting for held in circle.held()), circle.held()
    finally:
        circle.close()


def test_a_repeated_group_keeps_the_prefetched_data_of_its_batch():
    circle = Circle()
    try:
        circle.arrive(group("a"))
        circle.step()
        for _ in range(3):
            circle.arrive(group("a"))
            circle.step()
        circle.arrive(group("b"))
        circle.step()
        assert circle.held() == [set(), set()]
        assert sorted(circle.reads) == ["a", "a", "b", "b"], "each rank reads each group once"
        assert {name: sorted(members) for name, members in circle.shared.items()} == {"a": ["a"], "b": ["b"]}
    finally:
        circle.close()
