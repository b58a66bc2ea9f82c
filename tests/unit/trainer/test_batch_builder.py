"""Rank 0 fills a batch with fresh, unseen groups; what it drops, every rank forgets to have read ahead."""

from collections import deque

import pytest
import structlog

from dart_streams.telemetry.stall_detector import StallDetector
from topics.curated import CuratedGroup, Member
from trainer.data.batch_builder import BatchBuilder, BatchPlan
from trainer.data.consumer import Arrival, Position


def group(name: str, version: int = 5) -> CuratedGroup:
    member = Member(
        trajectory_id=name,
        reward=1.0,
        advantage=1.0,
        selected=[0],
        source="online",
        version_min=version,
        version_max=version,
    )
    return CuratedGroup(group_id=name, task_id="task", members=[member], mean=0.0, std=1.0)


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
    assert [one.group_id for one in plan.dropped] == ["a"]
    assert (plan.stale, plan.position.groups_consumed) == (0, 2)


def test_a_stale_group_is_dropped_and_counted_with_the_next_batch(builder: BatchBuilder) -> None:
    waiting = plan_after(builder, group("old", version=3))
    assert ([one.group_id for one in waiting.dropped], waiting.stale) == (["old"], 0)
    plan = plan_after(builder, group("a"), group("b", version=4))
    assert (plan.dropped, plan.stale, plan.position.groups_consumed) == ([], 1, 3)
