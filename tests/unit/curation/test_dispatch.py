from collections import Counter
from fractions import Fraction
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.curation_world import task_set
from dart_streams.config import parse
from dart_streams.curation import difficulty, dispatch, task_scheduler
from dart_streams.curation.order_tracker import order_backlog
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import InputRecord
from dart_streams.curation.staleness import admits, curated_share, group_capacity
from tests import events
from topics.rollout_budgets import RolloutBudget
from topics.task_difficulty import Cause


class Dispatch:
    """The dispatch agent with offsets that count by themselves; ``orders`` has all that it gave."""

    def __init__(self, tasks=20, **tables):
        self.config = parse({"env": {"slots": 8}, **tables})
        self.tasks = task_set(tasks)
        self.settings = dispatch.DispatchSettings.of(self.config, self.tasks)
        self.rules = bind_rules(self.config)
        self.state = dispatch.DispatchState()
        self.orders = []
        self.offset = 0

    def apply(self, event):
        record = InputRecord("any", 0, self.offset, event)
        self.state, decisions = dispatch.apply(self.state, record, self.settings, self.rules)
        self.offset += 1
        new = [decision.event for decision in decisions]
        assert [decision.id for decision in decisions] == [order.order_id for order in new]
        self.orders += new
        return new

    def weights(self, version=0, consumed=0, epoch=1):
        return self.apply(events.weight_version(version, epoch=epoch, groups_consumed=consumed))

    def curated(self, group_id="g000000"):
        return self.apply(events.curated_group(group_id))

    def finish(self, order, outcome="failure", rollouts=8, max_steps=10, guided=False):
        cause = Cause(
            trajectory_id=f"t-{order.order_id}",
            order_id=order.order_id,
            group_id=order.group_id,
            outcome=outcome,
            attempt=order.attempt,
            guided=guided or order.guide is not None,
        )
        return self.apply(
            RolloutBudget(task_id=order.task_id, rollouts=rollouts, max_steps=max_steps, reason="", cause=cause)
        )

    def play(self, groups, wins, rollouts=lambda order: 8):
        """Let orders finish in turn, each as ``wins`` says, until ``groups`` groups are open; return their tasks."""
        self.weights()
        for order in iter(self.orders):
            if self.state.next_group >= groups:
                break
            self.finish(order, "success" if wins(order) else "failure", rollouts(order))
        return [order.task_id for order in self.orders if order.sample == 0]


def test_nothing_is_ordered_before_the_first_weights():
    agent = Dispatch()
    assert agent.curated() == []
    first = agent.weights()
    assert len(first) == order_backlog(agent.config) == 16
    assert agent.weights(0) == []


def test_orders_carry_what_a_worker_needs():
    order = Dispatch(policy={"max_tokens": 7}).weights(version=3)[1]
    assert (order.order_id, order.group_id, order.sample, order.attempt) == ("g000000/1/0", "g000000", 1, 0)
    assert (order.group_size, order.max_steps, order.purpose, order.after_version) == (8, 10, "train", 3)
    assert order.sampling.max_tokens == 7


def test_the_first_finish_of_an_order_makes_room_and_no_group_is_awaited():
    agent = Dispatch()
    first = agent.weights()
    assert len(agent.finish(first[0])) == 8
    assert agent.finish(first[8]) == []
    assert agent.state.open_orders == 22
    assert agent.finish(first[0]) == [], "it has finished"
    assert agent.state.open_orders == 22


def test_the_first_pass_visits_every_task_in_seeded_order():
    def first_pass(seed):
        agent = Dispatch(tasks=12, curation={"dispatch": {"seed": seed}}, trainer={"groups_per_step": 100})
        agent.weights()
        while len(agent.orders) < 12 * 8:
            agent.finish(next(o for o in agent.orders if o.sample in open_samples(agent, o)))
        return list(dict.fromkeys(order.task_id for order in agent.orders))[:12]

    assert sorted(first_pass(0)) == sorted(task.task_id for task in task_set(12).train)
    assert first_pass(0) == first_pass(0) != first_pass(1)


def open_samples(agent, order):
    samples = agent.state.orders.open.get(int(order.group_id[1:]), [])
    return [sample for sample, attempt in enumerate(samples) if attempt == order.attempt]


@pytest.mark.parametrize(("budget", "next_group"), [((3, 4), (3, 4)), ((8, 99), (8, 10))], ids=["", "above the task's"])
def test_a_budget_sets_size_and_length_of_the_tasks_next_group(budget, next_group):
    agent = Dispatch(tasks=1)
    for order in agent.weights()[:8]:
        agent.finish(order, "success", *budget)
    assert {(order.group_size, order.max_steps) for order in agent.orders[16:]} == {next_group}


@pytest.mark.parametrize("fault", ["env_error", "policy_error"])
def test_a_fault_is_ordered_again_until_the_tries_are_used_up(fault):
    agent = Dispatch()
    order = agent.weights()[0]
    for attempt in (1, 2):
        [order] = agent.finish(order, fault)
        assert (order.order_id, order.attempt) == (f"g000000/0/{attempt}", attempt)
    assert all(new.group_id != "g000000" for new in agent.finish(order, fault))
    assert agent.finish(order, fault) == []


def test_a_cancelled_order_stays_open_because_the_broker_gives_it_again():
    agent = Dispatch()
    order = agent.weights()[0]
    assert agent.finish(order, "cancelled") == []
    assert agent.state.open_orders == 16
    assert agent.finish(order, "success") != []


def test_a_demonstrations_budget_closes_nothing_and_a_strange_one_is_left():
    agent = Dispatch(tasks=1)
    shown = events.rollout_order("demo-1", task_id="simulated/grid#0")
    assert agent.finish(shown, "success", max_steps=4) == []
    assert {order.max_steps for order in agent.weights()} == {4}
    agent = Dispatch(tasks=1)
    agent.finish(events.rollout_order("x", task_id="simulated/grid#1000000"), "success", max_steps=4)
    assert {order.task_id for order in agent.weights()} == {"simulated/grid#0"}


def test_groups_are_opened_only_within_the_staleness_bound():
    agent = Dispatch(trainer={"groups_per_step": 2}, curation={"max_staleness": 2}, env={"slots": 64})
    first = agent.weights()
    assert len({order.group_id for order in first}) == group_capacity(2, 2) == 4
    for group_id in sorted({order.group_id for order in first}):
        agent.curated(group_id)
    for order in first:
        assert agent.finish(order) == []
    assert agent.state.open_orders == 0
    assert len({order.group_id for order in agent.weights(version=1, consumed=2)}) == 2


def test_a_curated_group_counts_once_if_it_was_opened():
    """Copies of records, with or without their headers, take no room from the groups to come."""
    agent = Dispatch(trainer={"groups_per_step": 2}, curation={"max_staleness": 2}, env={"slots": 64})
    first = agent.weights()
    assert agent.state.next_group == 4
    for group_id in ("g000001", "g000001", "g000004", "g999999999", "eval-v3", "g\u0663"):
        agent.curated(group_id)
    assert agent.state.curated == 1
    for order in first:
        agent.finish(order)
    assert len({order.group_id for order in agent.orders}) == 4 + 3


def test_counted_groups_are_remembered_within_the_horizon_only():
    agent = Dispatch(trainer={"groups_per_step": 1}, curation={"max_staleness": 1}, env={"slots": 1})
    agent.weights()
    horizon = agent.settings.limits.horizon
    for consumed in range(3 * horizon):
        newest = agent.orders[-1].group_id
        agent.curated(newest)
        for order in [one for one in agent.orders[-8:] if one.group_id == newest]:
            agent.finish(order)
        agent.weights(consumed=consumed + 1)
    assert agent.state.curated == 3 * horizon
    assert len(agent.state.counted) <= 2 * horizon + 1


def test_where_half_of_the_groups_are_dropped_twice_as_many_are_open():
    agent = Dispatch(
        trainer={"groups_per_step": 2}, curation={"max_staleness": 2, "budget": {"dynamic": False}}, env={"slots": 64}
    )
    agent.weights()
    for number in range(120):
        if number % 2:
            agent.curated(f"g{number:06}")
        for order in [order for order in agent.orders if order.group_id == f"g{number:06}"]:
            agent.finish(order, outcome="success" if order.sample % 2 else "failure")
        agent.weights(consumed=agent.state.curated)
    assert len(agent.state.groups) == 2 * group_capacity(2, 2)


def test_dropped_groups_make_room_at_once():
    agent = Dispatch(trainer={"groups_per_step": 1}, curation={"max_staleness": 1})
    first = agent.weights()
    assert len(first) == 8
    for order in first[:-1]:
        assert agent.finish(order) == []
    assert len(agent.finish(first[-1])) == 8


@pytest.mark.parametrize(("groups_per_step", "bound", "room"), [(8, 2, 16), (8, 1, 8), (8, 0, 8), (1, 3, 3)])
def test_the_room_is_never_less_than_one_step_of_the_trainer(groups_per_step, bound, room):
    assert group_capacity(groups_per_step, bound) == room
    assert admits(room - 1, 0, Fraction(1), groups_per_step, bound)
    assert not admits(0, room, Fraction(1), groups_per_step, bound)


@given(st.integers(0, 40), st.integers(0, 40), st.fractions(Fraction(1, 4), 1), st.integers(1, 8), st.integers(0, 4))
def test_a_group_opens_only_if_the_expected_curated_ones_have_room(opened, unconsumed, share, step, bound):
    admitted = admits(opened, unconsumed, share, step, bound)
    assert admitted is (share * (opened + 1) <= group_capacity(step, bound) - unconsumed)
    if admitted:
        assert admits(opened, unconsumed, max(Fraction(1, 4), share / 2), step, bound)


def test_the_curated_share_is_learned_from_closed_groups():
    assert curated_share([]) == curated_share([True] * 200) == 1
    assert curated_share([False] * 16) == Fraction(48, 64)
    assert curated_share([False] * 100 + [True, False] * 32) == Fraction(1, 2)
    assert curated_share([False] * 64) == Fraction(1, 4)


def test_a_repeated_version_with_more_groups_consumed_makes_room():
    agent = Dispatch(trainer={"groups_per_step": 1}, curation={"max_staleness": 1})
    for order in agent.weights():
        agent.curated() if order.sample == 0 else None
        agent.finish(order)
    assert agent.state.open_orders == 0
    assert len(agent.weights(consumed=1)) == 8
    assert agent.weights(consumed=0) == []
    assert agent.state.consumed == 1


def test_a_trainer_that_took_over_counts_anew_and_the_fenced_one_no_more():
    agent = Dispatch()
    agent.state.next_group = 50
    agent.weights(version=3, consumed=24, epoch=1)
    agent.weights(version=3, consumed=16, epoch=2)
    agent.weights(version=6, consumed=48, epoch=1)
    assert (agent.state.version, agent.state.epoch, agent.state.consumed) == (3, 2, 16), "the fenced one is not"
    agent.weights(version=3, consumed=10**12, epoch=2)
    assert agent.state.consumed == agent.state.next_group, "no more groups than were opened"


@pytest.fixture
def probing(monkeypatch):
    """Tasks count as solved early, and are probed often."""
    monkeypatch.setattr(task_scheduler, "PROBE_EVERY", 4)
    monkeypatch.setattr(difficulty, "WINDOW", 8)


@pytest.mark.parametrize(("choice", "size", "turns"), [("informative", 1, 4), ("even", 2, 2)])
def test_a_task_that_always_succeeds_is_probed_or_has_its_even_turns(probing, choice, size, turns):
    agent = Dispatch(tasks=2, trainer={"groups_per_step": 99}, curation={"dispatch": {"choice": choice}})
    easy = "simulated/grid#0"
    agent.play(200, lambda order: order.task_id == easy, lambda order: 2 if order.task_id == easy else 8)
    late = {order.group_id: order for order in agent.orders if order.group_id >= "g000100"}
    assert {order.group_size for order in late.values() if order.task_id == easy} == {size}
    assert Counter(order.task_id for order in late.values())[easy] == pytest.approx(len(late) / turns, abs=2)


def test_a_regression_of_a_solved_task_brings_its_groups_back(probing):
    agent = Dispatch(tasks=2, trainer={"groups_per_step": 99})
    agent.play(200, lambda order: order.task_id == "simulated/grid#0" and agent.state.next_group < 100)
    assert agent.orders[-1].group_size == 8
    assert {order.group_size for order in agent.orders if order.group_id >= "g000150"} == {8}


@pytest.mark.parametrize("choice", ["informative", "even"])
def test_no_task_starves_and_the_informative_ones_get_more(choice, monkeypatch):
    monkeypatch.setattr(task_scheduler, "PROBE_EVERY", 1000)
    agent = Dispatch(
        tasks=10,
        curation={"dispatch": {"choice": choice}, "budget": {"dynamic": False}},
        trainer={"groups_per_step": 99},
    )
    agent.weights()
    index = 0
    while agent.state.next_group < 600:
        order = agent.orders[index]
        index += 1
        never = order.task_id.endswith(tuple("01234"))
        agent.finish(order, "failure" if never or order.sample % 2 else "success")
    groups = Counter(order.task_id for order in agent.orders if order.sample == 0)
    assert len(groups) == 10
    hopeless = sum(number for task_id, number in groups.items() if task_id.endswith(tuple("01234")))
    share = hopeless / sum(groups.values())
    assert share == pytest.approx(0.5, abs=0.01) if choice == "even" else 0.2 < share < 0.4
    last = {order.task_id: int(order.group_id[1:]) for order in agent.orders}
    assert min(last.values()) > 600 - 4 * 10 - 5


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 1000), st.sets(st.integers(0, 8)))
def test_a_task_without_an_open_group_gets_one_within_the_bound(tasks, patience, seed, hopeless):
    agent = Dispatch(
        tasks=tasks,
        curation={"dispatch": {"seed": seed}, "budget": {"dynamic": False}},
        trainer={"groups_per_step": 99},
    )
    with mock.patch.object(task_scheduler, "PATIENCE", patience):
        agent.weights()
        free_since: dict[str, int] = {}
        for order in iter(agent.orders):
            if agent.state.next_group >= 40 * tasks:
                break
            wins = int(order.task_id.split("#")[1]) not in hopeless and order.sample % 2
            agent.finish(order, "success" if wins else "failure")
            for task_id in agent.settings.task_ids:
                if task_id in agent.state.tasks and agent.state.tasks[task_id].open:
                    free_since.pop(task_id, None)
                else:
                    waited = agent.state.next_group - free_since.setdefault(task_id, agent.state.next_group)
                    assert waited <= (patience + 1) * tasks, task_id
