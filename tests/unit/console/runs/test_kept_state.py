"""What of a long run is kept: the newest, counts, and all that is under way; memory is bounded."""

import gc
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.runs import open_orders
from console.runs.run_state import Retention, RunState
from console.runs.topic_activity import ActivityState
from console.views.terminal import summarize
from tests import events
from tests.unit.console.runs.test_run_log import group
from tests.unit.console.runs.test_run_state import START, finish, fold, seen, serving, version


def episode_events(number: int) -> Iterator[Any]:
    """Yield what topics have of an episode that was ordered, played, recorded, curated and trained on."""
    order_id, trajectory_id = f"o{number}", f"t{number}"
    yield events.rollout_order(order_id)
    for step in range(3):
        yield seen(trajectory_id, step, order_id, "success" if step == 2 else None)
    yield finish(order_id, trajectory_id)
    yield group(number)
    yield events.trained_step(number, group_ids=[f"g{number}"], imitated=[trajectory_id], metrics={"loss": number / 8})
    yield version(number, number)
    yield serving(number, START + number, 10.0)


def in_turns(stream: list[Any], rng: random.Random) -> list[Any]:
    """Mix topics, each of which stays in its order."""
    queues: dict[type, list[Any]] = {}
    for event in stream:
        queues.setdefault(type(event), []).append(event)
    return [rng.choice([queue for queue in queues.values() if queue]).pop(0) for _ in stream]


@given(
    st.integers(1, 12), st.builds(Retention, st.integers(1, 12), st.integers(1, 12)), st.randoms(use_true_random=False)
)
def test_bounded_state_keeps_counts_and_open_episodes(number: int, keep: Retention, rng: random.Random):
    evaluations = [event for n in range(4) for event in evaluated(n)]
    under_way = [events.rollout_order("open"), seen("open", 0, "open")]
    once = [*evaluations, *(event for n in range(number) for event in episode_events(n)), *under_way]
    stream = in_turns([event for event in once for _ in range(rng.choice([1, 1, 2]))], rng)
    whole, kept = fold(*stream), fold(*stream, progress=RunState(keep=keep))
    for field in ("train_finished", "groups_curated", "steps", "slices", "open", "activity", "newest_version"):
        assert getattr(kept, field) == getattr(whole, field), field
    assert (kept.groups_consumed, kept.served_version) == (whole.groups_consumed, whole.served_version)
    assert [[o.order_id for o in open_orders.unfinished_orders(one)] for one in (kept, whole)] == [["open"]] * 2
    assert whole.is_whole
    assert kept.is_whole == (number <= min(keep))
    trained = [end.order_id for end in kept.finished.values() if end.purpose == "train"]
    assert len(trained) == min(number, keep.orders)
    assert len(kept.groups) == len(kept.versions) == len(kept.trained) == min(number, keep.groups)
    assert {name for name in kept.finished if name.startswith("e")} == {"e0", "e1", "e2", "e3"}


def evaluated(number: int) -> Iterator[Any]:
    yield events.rollout_order(f"e{number}", purpose="eval")
    yield finish(f"e{number}", f"te{number}", purpose="eval")


def test_the_newest_are_kept_and_forgotten_switches_are_missing_too():
    kept = fold(*(event for n in range(5) for event in episode_events(n)), progress=RunState(keep=Retention(2, 2)))
    assert list(kept.finished) == ["o3", "o4"] == list(kept.orders)
    assert list(kept.trajectories) == ["t3", "t4"]
    assert kept.ended.keys() == {"t3", "t4"} == kept.newest_step.keys() == kept.groups_of.keys()
    assert list(kept.groups) == ["g3", "g4"]
    assert list(kept.trained) == [3, 4]
    assert (kept.trained_with, kept.imitated_by) == ({"g3": [3], "g4": [4]}, {"t3": [3], "t4": [4]})
    assert list(kept.versions) == [3, 4] == [number for number, _ in kept.served]
    assert kept.orders_of == {"g": {"o3", "o4"}}
    assert (kept.train_finished, kept.groups_curated) == (5, 5)
    assert summarize(kept, START + 60_000, 1).trained == {"loss": 0.5}
    workers = [serving(n, START + n, 10.0, f"rollout-{w}") for n in range(3) for w in range(3)]
    kept = fold(*episode_events(0), *workers, progress=RunState(keep=Retention(4, 4)))
    assert [(one.version, one.worker_id[-1]) for one in kept.switches] == [(1, "2"), (2, "0"), (2, "1"), (2, "2")]
    assert not kept.is_whole


EPISODES = 2_000


def grown(state: Any) -> float:
    """Return by how many bytes a state has grown for each of the episodes that came after as many others."""
    gc.disable()  # A full collection empties Python's lists of free objects, and what fills them again would count.
    for number in range(2 * EPISODES):
        if number == EPISODES:
            tracemalloc.start()
        fold(*episode_events(number), progress=state)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    gc.enable()
    return size / EPISODES


def test_memory_stops_growing_where_the_newest_are_kept():
    """What was there before is freed unseen, so what takes its place counts: 1 % of all here."""
    kept, whole = grown(RunState(keep=Retention(20, 20))), grown(RunState())
    assert kept < 0.1 * whole, (kept, whole)
    assert grown(ActivityState()) < 2.0


@pytest.mark.parametrize("state", [RunState(), RunState(keep=Retention(1, 1))])
def test_activity_alone_is_that_of_the_whole_fold(state: RunState):
    stream = [event for n in range(3) for event in episode_events(n)]
    assert fold(*stream, progress=ActivityState()).activity == fold(*stream, progress=state).activity
    senders = {activity.sender for activity in state.activity.values()}
    assert senders == {"dispatch", "env-0", "recorder", "curator", "trainer epoch 1", "rollout-0"}
