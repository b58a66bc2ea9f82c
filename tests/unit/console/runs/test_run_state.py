"""A run's progress, folded from its topics: repeats and the order between topics change nothing."""

import itertools
import random
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.runs import open_orders
from console.runs.log_liveness import MISSED_BEATS
from console.runs.run_log import EndHeader, ObservationHeader, OrderHeader, RecordMetadata
from console.runs.run_state import RunState
from console.runs.time_slices import MAX_SPAN_MS, SLICE_MS, split_span
from console.runs.topic_activity import LastArrival, describe_stall, explain_stall, find_stalls
from console.runs.weight_versions import curated_ages
from console.views.terminal import draw_sparkline, smooth, summarize
from dart_streams.bus.lag import Lag
from tests import events
from tests.events import rollout_order
from topics import ALL

START = 1_000_000 * SLICE_MS
TOPICS = {topic.event: topic.name for topic in ALL} | {ObservationHeader: "observations"}


def finish(order_id, trajectory_id="t", outcome="success", reward=1.0, purpose="train", started=START, lasted=2_000):
    return events.trajectory(
        trajectory_id,
        order_id=order_id,
        purpose=purpose,
        outcome=outcome,
        reward=reward,
        started_ms=started,
        finished_ms=started + lasted,
    )


def seen(trajectory_id, step, order_id="o", end=None, at=START):
    return ObservationHeader(
        trajectory_id, OrderHeader(order_id, "train"), step, EndHeader(end) if end else None, "env-0", at
    )


def version(number, consumed=0):
    return events.weight_version(number, groups_consumed=consumed)


def serving(number, alive, pause=None, worker="rollout-0"):
    return events.weights_serving(number, worker_id=worker, since_ms=alive, alive_ms=alive, pause_ms=pause)


def fold(*events, progress=None, at_ms=START):
    """Apply events, each as the next record of its topic."""
    progress = progress or RunState()
    for event in events:
        topic = TOPICS[type(event)]
        offset = progress.activity[topic].records if topic in progress.activity else 0
        progress.apply(RecordMetadata(topic, 0, offset, at_ms), event)
    return progress


def test_an_episode_is_open_until_its_end_and_a_repeat_is_no_step():
    progress = fold(seen("t", 0), seen("t", 1), seen("t", 1))
    assert (list(progress.open), progress.steps) == (["t"], 1)
    fold(seen("t", 2, end="failure"), seen("t", 1), progress=progress)
    assert (progress.open, progress.steps) == ({}, 2)


def test_the_first_finish_of_an_order_counts_and_closes_all_its_episodes():
    progress = fold(seen("dead", 0), finish("o", "t1"), finish("o", "t2", "failure", 0.0))
    assert progress.finished["o"].trajectory_id == "t1"
    assert sum(part.episodes for part in progress.slices.values()) == 1
    assert progress.open == {}


def test_env_faults_are_counted_by_task_and_host():

    def failed(trajectory_id, order_id, reason):
        event = seen(trajectory_id, 0, order_id)
        return msgspec.structs.replace(event, end=EndHeader("env_error", None, reason))

    first = failed("t1", "o", "no X server")
    state = fold(first, first, failed("t2", "p", "set aside on this host"), seen("t3", 0, "q", end="failure"))
    [(place, known)] = state.env_faults.items()
    assert place == (seen("t1", 0).order.task_id, seen("t1", 0).env_host)
    assert (known.episodes, known.reason) == (2, "set aside on this host")
    assert state.env_fault_kinds.most(9) == {"no X server": 1, "set aside on this host": 1}


def test_an_order_is_unfinished_until_it_ends_and_lost_by_its_first_finish():
    progress = fold(rollout_order("a"), rollout_order("b", purpose="eval"))
    assert [o.order_id for o in open_orders.unfinished_orders(progress, "train")] == ["a"]
    fold(finish("a"), progress=progress)
    assert [o.order_id for o in open_orders.unfinished_orders(progress)] == ["b"]
    ends = [("a", "lost"), ("a", "success"), ("b", "success"), ("b", "lost"), ("c", "lost")]
    assert fold(*(finish(name, f"t{n}", outcome, None) for n, (name, outcome) in enumerate(ends))).lost == 2


def test_orders_are_not_counted_as_lost_or_open_while_no_lag_is_known():
    state = fold(rollout_order("o1"))
    assert (open_orders.lost_orders(state, None), open_orders.orders_under_way(state, None)) == (None, None)
    assert (open_orders.lost_orders(state, []), open_orders.orders_under_way(state, [])) == ([], ["o1"])
    fold(finish("o1"), progress=state)
    assert (open_orders.lost_orders(state, None), open_orders.orders_under_way(state, None)) == ([], [])


def test_an_order_is_not_lost_while_the_recorder_has_not_taken_its_end():
    state, end = RunState(), seen("t0", 2, "o0", end="failure")
    state.apply(RecordMetadata("rollout-orders", 1, 0, START), rollout_order("o0"))
    state.apply(RecordMetadata("observations", 3, 7, START), end)
    played, behind, taken = (
        Lag("env", "rollout-orders", 1, 1, 1),
        *(Lag("recorder", "observations", 3, at, 8) for at in (7, 8)),
    )
    for lags, lost in (([played], []), ([played, behind], []), ([played, taken], ["o0"])):
        assert open_orders.unannounced_orders(state, lags) == ["o0"]
        assert open_orders.lost_orders(state, lags) == lost
        assert open_orders.orders_under_way(state, lags) == [name for name in ["o0"] if name not in lost]
    state.apply(RecordMetadata("trajectories", 0, 0, START), finish("o0", "t0"))
    assert open_orders.lost_orders(state, [played, taken]) == []
    assert state.unrecorded == {}


@pytest.mark.parametrize(
    ("records", "switches"),
    [
        ([(0, 1), (1, 2, 40.0), (1, 3, 40.0), (3, 4, 50.0)], [(1, 40.0), (3, 50.0)]),
        ([(0, 600_000), (1, 5, 40.0), (1, 6, 40.0)], [(1, 40.0)]),
        ([(n, n, 40.0) for n in (0, 1, 2, 0, 1, 2)], [(1, 40.0), (2, 40.0)]),
    ],
    ids=["", "the clock jumps back", "records come again"],
)
def test_a_switch_is_a_newer_version_with_a_pause(records, switches):
    progress = fold(*(serving(*record) for record in records))
    assert [(s.version, s.pause_ms) for s in progress.switches] == switches
    assert progress.served_version == switches[-1][0]


def step(number, epoch, group):
    return events.trained_step(number, epoch=epoch, group_ids=[group], at_ms=START, imitated=[f"imitated by {epoch}"])


def test_steps_and_versions_of_a_fenced_trainer_do_not_count():
    made = [(3, 1, "a"), (4, 1, "b"), (4, 2, "c"), (4, 1, "b"), (5, 1, "d"), (4, 2, "c")]
    progress = fold(*(step(*one) for one in made))
    assert {number: known.epoch for number, known in progress.trained.items()} == {3: 1, 4: 2}
    assert {group: steps for group, steps in progress.trained_with.items() if steps} == {"a": [3], "c": [4]}
    assert progress.imitated_by == {"imitated by 1": [3], "imitated by 2": [4]}

    def of(number, epoch, model_id="m"):
        return events.weight_version(number, model_id=model_id, epoch=epoch)

    progress = fold(of(3, 1), of(3, 2), of(9, 1), of(4, 2), of(5, 1, "another"))
    assert sorted(progress.versions) == [3, 4, 5]
    assert (progress.versions[3].event.epoch, progress.versions[4].event.epoch) == (2, 2)


def test_a_version_is_served_when_every_worker_serves_it():
    progress = fold(version(0), version(1, 8), serving(1, 5), serving(0, 5, worker="rollout-1"))
    assert (progress.newest_version, progress.served_version, progress.groups_consumed) == (1, 0, 8)


def test_a_worker_that_is_gone_does_not_hold_the_served_version():
    progress = fold(serving(3, 5, worker="rollout-of-a-deleted-pod"), *(serving(7, n) for n in range(MISSED_BEATS - 1)))
    assert progress.served_version == 3, "it may only be slow"
    assert fold(serving(7, 100), progress=progress).served_version == 7
    assert fold(serving(4, 6, worker="rollout-of-a-deleted-pod"), progress=progress).served_version == 4, "it is back"
    assert fold(*(serving(3, n) for n in range(3 * MISSED_BEATS))).served_version == 3, "one alone is never gone"


def test_workers_that_a_resumed_run_has_no_more_are_not_waited_for():
    progress = fold(serving(3, 5, worker="rollout-1"), serving(7, 5))
    assert progress.served_by({"rollout-0"}) == 7
    assert progress.served_by({"rollout-0", "rollout-1"}) == 3
    assert progress.served_by({"rollout-0", "rollout-2"}) == 7, "one that has announced nothing yet serves nothing"
    assert progress.served_by({"rollout-2"}) is None


@pytest.mark.parametrize(("number", "epoch"), [(10**9, 1), (1, 10**9)])
def test_a_record_that_no_trainer_wrote_is_no_version(number, epoch):
    progress = fold(version(0), events.weight_version(number, epoch=epoch), version(1, 8))
    assert sorted(progress.versions) == [0, 1]


def test_a_step_that_no_trainer_wrote_hides_none_of_those_that_come():
    progress = fold(*(step(n, epoch, "g") for n, epoch in enumerate((1, 10**9, 1), start=1)))
    assert sorted(progress.trained) == [1, 3]


def test_staleness_is_of_online_members_when_their_group_is_curated():
    members = [events.member(source=source, version=low) for source, low in (("online", 0), ("pool", None))]
    group = events.curated_group("g", *members)
    progress = RunState()
    for after_ms, event in ((0, version(0)), (5, version(2)), (50, version(3)), (10, group), (10, group)):
        fold(event, progress=progress, at_ms=START + after_ms)
    assert curated_ages(progress) == [(START + 10, 2)]


@given(st.integers(0, 10**7), st.integers(0, 10**6))
def test_a_span_is_split_without_loss(start, length):
    parts = split_span(start, start + length)
    assert sum(ms for _, ms in parts) == length
    assert all(0 <= ms <= SLICE_MS for _, ms in parts)


@pytest.mark.parametrize("started", [0, START])
def test_a_span_of_a_wrong_clock_costs_neither_memory_nor_time(started: int):
    """From 1970 to now are 350 million slices, and from now to the year 9999 more."""
    end = 1_790_000_000_000 if started == 0 else 253_402_300_799_999
    tracemalloc.start()
    progress = fold(
        seen("open", 0, "other", at=started),
        finish("o", started=started, lasted=end - started),
        finish("p", "t2", started=0, lasted=0),
    )
    summary = summarize(progress, end, slots=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20
    assert len(summary.curve) <= MAX_SPAN_MS // SLICE_MS
    assert progress.train_finished == 2


@given(st.randoms(use_true_random=False))
def test_the_order_between_topics_changes_nothing(rng: random.Random):
    queues = [
        [rollout_order(f"o{n}") for n in range(4)],
        [seen(f"t{n}", s, f"o{n}", "success" if s == 2 else None) for n in range(3) for s in range(3)],
        [finish(f"o{n}", f"t{n}") for n in range(3)],
        [serving(n, n, 10.0) for n in range(3)],
    ]
    in_order, mixed = fold(*itertools.chain(*queues)), RunState()
    while left := [queue for queue in queues if queue]:
        fold(rng.choice(left).pop(0), progress=mixed)
    for field in ("finished", "open", "switches", "activity", "slices", "steps"):
        assert getattr(mixed, field) == getattr(in_order, field), field


def test_a_summary_shows_rates_of_the_last_half_minute():
    progress = RunState()
    for n in range(30):
        outcome, reward = ("success", 1.0) if n % 3 else ("failure", 0.0)
        event = finish(f"o{n}", f"t{n}", outcome, reward, started=START + n * 1000, lasted=1000)
        fold(seen(f"t{n}", 1, f"o{n}", at=START + n * 1000), event, progress=progress)
    summary = summarize(progress, START + 30_000, slots=2)
    assert summary.steps_per_s == pytest.approx(1.0)
    assert summary.utilization == pytest.approx(0.5)
    assert progress.recent_success == pytest.approx(2 / 3)


def test_a_sparkline_has_gaps_where_nothing_finished():
    assert draw_sparkline([0.0, None, 0.5, 1.0]) == "▁ ▅█"
    assert smooth((0.0, 1.0, None, None, 1.0), 3) == [0.5, None, 1.0]


def arrived(at_s):
    return {topic: LastArrival(when_s, "env-0") for topic, when_s in at_s.items()}


def stalls_of(topic, progress, at_s, now_s):
    stalls = find_stalls(progress.activity, arrived(at_s), since_s=0.0, now_s=now_s, bound_s=30)
    return [stall for stall in stalls if stall.topic == topic]


def test_a_stall_names_the_writer_that_has_input():
    progress = fold(rollout_order("a"), seen("t", 0))
    found = find_stalls(
        progress.activity, arrived({"rollout-orders": 50.0, "observations": 10.0}), since_s=0.0, now_s=60.0, bound_s=30
    )
    first = found[0]
    assert (first.topic, first.silent_s, first.last_from, first.waiting) == ("observations", 50.0, "env-0", False)
    assert explain_stall(first) == "newer input on rollout-orders for environment workers: look at the log"
    assert describe_stall(first) == (
        "observations silent for 50 s, the last record is observations[0]@0 from env-0: "
        "newer input on rollout-orders for environment workers: look at the log"
    )
    assert describe_stall(found[1]) == (
        "action-requests silent for 60 s: "
        "input on observations, but nothing from environment workers yet: once started, look at the log"
    )
    assert {stall.topic for stall in found} == {"observations", "action-requests", "trajectories"}


def test_a_writer_without_input_waits_for_it_as_times_of_records_hint():
    progress = fold(events.weight_version(0))
    [stall] = stalls_of("weights", progress, {}, 40.0)
    assert explain_stall(stall) == "no newer input for trainer on curated"
    progress = fold(seen("t", 0), progress=fold(rollout_order("a"), at_ms=START + 50_000), at_ms=START + 10_000)
    [stall] = stalls_of("observations", progress, {}, 40.0)
    assert (stall.silent_s, stall.waiting) == (40.0, False)


def test_a_wrong_clock_neither_causes_nor_hides_a_stall():
    for off_ms in (-600_000, 600_000):
        progress = fold(seen("t", 0), progress=fold(rollout_order("a")), at_ms=START + off_ms)
        assert stalls_of("observations", progress, {"rollout-orders": 59.0, "observations": 59.0}, 60.0) == []
        [stall] = stalls_of("observations", progress, {"rollout-orders": 59.0, "observations": 5.0}, 60.0)
        assert (stall.silent_s, stall.waiting) == (55.0, False)


def test_nothing_is_stalled_while_everything_moves():
    progress = fold(rollout_order("a"), seen("t", 0))
    arrivals = arrived({"rollout-orders": 1.0, "observations": 1.0})
    assert find_stalls(progress.activity, arrivals, since_s=0.0, now_s=2.0, bound_s=30) == []
