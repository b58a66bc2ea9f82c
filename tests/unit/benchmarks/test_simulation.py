"""The discrete-event simulation: against what can be worked out by hand, and against its own promises."""

import itertools
from collections import Counter
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import decoupling, modes, routing
from benchmarks.modes import MODES, DeploymentShape
from benchmarks.simulation import Overheads, Routing, Simulation, Way
from benchmarks.utilization import Account, OptimizerStep, covered_time, overlap, utilization_metrics
from dart_streams.config import tasks as task_sets
from dart_streams.config.tasks import Page, TaskSet
from dart_streams.config.workload import GenerationTimes, Spread, Workload
from dart_streams.errors import UserError

BASE = modes.load_workload(Path(__file__).parents[3] / "deploy/config/workload/desktop.toml")
TASKS = task_sets.load(Path(BASE.tasks.file))
SMALL = DeploymentShape(slots=16, workers=2, places=6, batch=2)
WIDE = DeploymentShape(slots=16, workers=2, places=16, batch=2, curated=False)
"""A shape in which no request waits for a place."""


def simulation(mode, shape=SMALL, seed=0, **options) -> Simulation:
    return Simulation(modes.mode_config(BASE, mode, shape, seed), TASKS, seed, **options)


def clockwork(mode, shape, overheads=None, **workload) -> Account:
    """A deployment without chance: reset 60, ten steps of 2 + 3, evaluator 5, so 115 an episode; optimizer 100."""
    exact = Workload(
        reset_s=Spread(median=60.0),
        settle_s=Spread(median=2.0),
        evaluate_s=Spread(median=5.0),
        hang_share=0.0,
        steps_sigma=0.0,
        success=(0.5, 0.5),
        generation=GenerationTimes(prefill_s=3.0, token_s=0.0, load=0.0),
        optimizer_s=Spread(median=100.0),
        switch_s=10.0,
        restart_s=70.0,
    )
    base = msgspec.structs.replace(BASE, workload=msgspec.structs.replace(exact, **workload))
    config = modes.mode_config(base, mode, shape, 0)
    page = Page(environment="simulated", page="work-10", max_steps=50, train_seeds=(0, 40), heldout_seeds=(90, 91))
    return Simulation(config, TaskSet([page]), 0, overheads).run(20_000)


@pytest.mark.parametrize(("mode", "switch_s"), [("coupled", 10), ("coupled-restart", 70)])
def test_a_coupled_cycle_is_an_episode_a_step_and_a_switch(mode, switch_s):
    found = utilization_metrics(clockwork(mode, WIDE), 0)
    cycle_s = 115 + 100 + switch_s
    assert found.optimizer_steps_per_min == pytest.approx(60 / cycle_s)
    assert found.env_utilisation == pytest.approx(115 / cycle_s)
    assert found.rollout_utilisation == pytest.approx(10 * 3 / cycle_s)
    assert found.actions_per_min == pytest.approx(16 * 10 * 60 / cycle_s)
    assert found.trainer_utilisation == pytest.approx(100 / cycle_s)
    assert found.staleness_max == 0


def test_a_batch_comes_in_waves_and_overheads_are_added_to_its_cycle():
    found = utilization_metrics(clockwork("coupled", msgspec.structs.replace(WIDE, slots=8)), 0)
    assert found.env_utilisation == pytest.approx(230 / 340)
    found = utilization_metrics(clockwork("coupled", WIDE, Overheads(step_s=1.0, order_s=20.0)), 0)
    assert found.optimizer_steps_per_min == pytest.approx(60 / (20 + 125 + 100 + 10))


def test_dart_keeps_every_slot_busy_up_to_the_staleness_bound():
    found = utilization_metrics(clockwork("dart", msgspec.structs.replace(WIDE, batch=6)), 2000)
    assert found.env_utilisation == pytest.approx(1.0, abs=0.005)
    assert found.actions_per_min == pytest.approx(16 * 10 * 60 / 115, rel=0.02)
    found = utilization_metrics(clockwork("dart", WIDE, optimizer_s=Spread(median=1000.0)), 2000)
    assert found.trainer_utilisation == pytest.approx(1.0, abs=0.02)
    assert found.env_utilisation < 0.4
    assert found.staleness_max <= WIDE.max_staleness


def test_workers_that_switch_in_turn_answer_while_one_switches():
    """At each version all answers pause for the switch, or those of one worker of two at a time."""
    busy = msgspec.structs.replace(WIDE, batch=4)
    found = {mode: utilization_metrics(clockwork(mode, busy, switch_s=60.0), 2000) for mode in ("dart-at-once", "dart")}
    assert found["dart-at-once"].request_wait_s > 1.2 * found["dart"].request_wait_s > 0
    assert modes.mode_config(BASE, "dart-at-once", busy, 0).rollout.roll_width == 2
    assert modes.mode_config(BASE, "dart", busy, 0).rollout.roll_width == 1


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_trajectory_goes_to_the_owner_of_its_partition(workers):
    shape = msgspec.structs.replace(SMALL, workers=workers)
    made = simulation("dart", shape)
    assert len(made.owners) == max(4, workers) and set(made.owners) == set(range(workers))
    homes = Counter(made.home().number for _ in range(2000))
    assert min(homes.values()) > 0.8 * 2000 / workers, "keys are spread over the partitions"


def test_requests_by_trajectory_wait_where_others_have_room():
    shape = msgspec.structs.replace(SMALL, workers=4, places=2)
    found = {}
    for way in get_args(Way):
        account = simulation("dart", shape, routing=Routing(by=way, slow=2.0, cold=3.5)).run(20_000)
        found[way] = utilization_metrics(account, 1_000)
    assert found["trajectory"].moved_share == 0 < found["overflow"].moved_share < found["load"].moved_share
    assert found["trajectory"].request_wait_s > 3 * found["overflow"].request_wait_s
    assert found["load"].request_s > found["overflow"].request_s, "it lacks prefix caches"


def test_an_overflowing_request_waits_only_if_all_workers_are_full():
    made = simulation("dart", msgspec.structs.replace(SMALL, workers=4, places=2), routing=Routing(by="overflow"))
    put, queued = made.queue, 0

    def queue(rollout):
        nonlocal queued
        put(rollout)
        if rollout in rollout.worker.queue:
            queued += 1
            assert all(worker.under_way == made.places or worker.switching for worker in made.workers)

    made.queue = queue
    made.run(20_000)
    assert queued


def test_requests_leave_a_worker_that_switches_if_the_other_has_room():
    shape = msgspec.structs.replace(WIDE, batch=4)
    config = modes.mode_config(BASE, "dart", shape, 0)
    slow = msgspec.structs.replace(config, workload=msgspec.structs.replace(config.workload, switch_s=60.0))
    by_key, moving = (
        utilization_metrics(Simulation(slow, TASKS, 0, routing=Routing(by=way)).run(20_000), 1_000)
        for way in ("trajectory", "overflow")
    )
    assert moving.moved_share > 0 and moving.request_wait_s < 0.5 * by_key.request_wait_s


def test_the_ways_of_requests_are_compared_in_a_row_each():
    rows = routing.measure(BASE, [8], [2], seeds=2, hours=2.0)
    assert [(row.load, row.by) for row in rows] == list(itertools.product(get_args(routing.Load), get_args(Way)))
    equal, slow = rows[:3], rows[3:]
    assert all(one.request_s < other.request_s for one, other in zip(equal, slow, strict=True))
    assert {row.moved for row in rows if row.by == "trajectory"} == {0.0}
    assert {routing.routing_shape(180, workers).places for workers in (2, 4, 8)} == {64, 32, 16}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_lives_on_real_times_and_keeps_to_the_staleness_bound(mode):
    found = utilization_metrics(simulation(mode).run(20_000), 1_000)
    assert 0.2 < found.env_utilisation <= 1
    assert 0 < found.rollout_occupancy <= found.rollout_utilisation <= 1
    assert found.staleness_max <= (0 if mode.startswith("coupled") else SMALL.max_staleness)
    assert 0 < found.trained_steps_per_min <= found.actions_per_min * 1.1


def test_decoupling_is_worth_its_name():
    found = decoupling.measure(BASE, SMALL, 2, decoupling.SimulatedRun(BASE, 3.0).play)
    comparison = decoupling.compare_modes(found, BASE, SMALL)
    assert list(comparison["modes"]) == list(comparison["ratios"]) == list(MODES)
    assert comparison["ratios"]["coupled"]["env_utilisation"] == 1.0
    order = [
        comparison["modes"][mode]["env_utilisation"] for mode in ("coupled-restart", "coupled", "task-wise", "dart")
    ]
    assert order == sorted(order)
    assert len(decoupling.table_rows(comparison)) == len(MODES)


def test_a_comparison_has_a_simulation_with_measured_overheads(monkeypatch):
    monkeypatch.setattr(decoupling, "SIMULATED_SEEDS", 3)
    overheads = {mode: Overheads(step_s=2.0) for mode in MODES}
    met = decoupling.measure(BASE, SMALL, 1, decoupling.SimulatedRun(BASE, 4.0, overheads).play)
    comparison = decoupling.compare_modes(met, BASE, SMALL)
    with_them, without = (
        decoupling.add_simulation(comparison, BASE, SMALL, 4.0, taken)["to_simulated"] for taken in (overheads, {})
    )
    for mode in MODES:
        assert with_them[mode]["actions_per_min"] == pytest.approx(1.0, abs=0.15)
        assert without[mode]["actions_per_min"] < with_them[mode]["actions_per_min"]


def test_a_seed_gives_the_same_run_and_too_short_a_one_is_refused():
    one, other = (simulation("dart", seed=3).run(5_000) for _ in range(2))
    assert one == other
    assert simulation("dart", seed=4).run(5_000) != one
    account = Account(1, 1, 1, trained=[OptimizerStep(5.0, 1.0, 10, 0)])
    with pytest.raises(UserError, match="run for longer"):
        utilization_metrics(account, 0)


SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(1, 20)), max_size=12)


@settings(deadline=None)
@given(SPANS, st.integers(0, 30), st.integers(1, 40))
def test_time_covered_is_what_counting_seconds_gives(drawn, start, lasts):
    spans = [(worker, float(a), float(a + length)) for worker, a, length in drawn]
    counted = sum(
        any(w == worker and a <= second < b for w, a, b in spans)
        for worker in range(3)
        for second in range(start, start + lasts)
    )
    assert covered_time(spans, start, start + lasts) == counted
    assert overlap([(a, b) for _, a, b in spans], start, start + lasts) >= counted


@pytest.mark.parametrize(("width", "too_old"), [(1, True), (80 // modes.ROLLS, False)], ids=["one", "a quarter"])
def test_where_workers_are_many_one_at_a_time_is_slower_than_versions_come(width, too_old):
    shape = DeploymentShape(slots=80, workers=80, places=1, batch=11, max_staleness=4, curated=False)
    config = modes.mode_config(BASE, "dart", shape, 0)
    rollout = msgspec.structs.replace(config.rollout, roll_width=width)
    rolling = Simulation(msgspec.structs.replace(config, rollout=rollout), TASKS, 0)
    assert (utilization_metrics(rolling.run(2 * 3600), 1_000).wasted > 0.3) == too_old
