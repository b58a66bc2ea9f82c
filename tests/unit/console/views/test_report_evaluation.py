"""Evaluation orders, what is still missing of them, and the statistics of what came out."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.runs import evaluation
from console.runs.evaluation import rate_difference, wilson_rate
from dart_streams.config import Config, Evaluation, parse
from dart_streams.config.tasks import Page, TaskSet
from dart_streams.errors import ConfigError
from tests import events
from tests.unit.console.runs.test_run_state import fold


def task_set(heldout):
    return TaskSet(
        [
            Page(environment="miniwob", page=page, max_steps=5, train_seeds=(0, 10), heldout_seeds=(1000, 1000 + seeds))
            for page, seeds in heldout.items()
        ]
    )


CONFIG = Config(evaluation=Evaluation(episodes=6, temperatures=(0.7, 0.0)))
TASKS = task_set({"click-test": 2, "enter-text": 5})


def finish(order, outcome="success", reward=1.0):
    return events.trajectory(
        f"t-{order.order_id}",
        order_id=order.order_id,
        group_id=order.group_id,
        group_size=order.group_size,
        attempt=order.attempt,
        task_id=order.task_id,
        purpose="eval",
        outcome=outcome,
        reward=reward,
    )


def test_held_out_tasks_are_spread_evenly_over_pages_and_must_be_there():
    picked = evaluation.pick_tasks(TASKS, 7)
    assert [task.page for task in picked].count("click-test") == 4
    assert [task.page for task in picked].count("enter-text") == 3
    assert all(task.split == "heldout" for task in picked)
    assert [task.seed for task in picked if task.page == "click-test"] == [1000, 1001, 1000, 1001]
    with pytest.raises(ConfigError, match="heldout_seeds"):
        evaluation.pick_tasks(task_set({"click-test": 0}), 4)


def test_orders_of_an_evaluation_are_the_same_each_time_and_pair_up():
    first, again = evaluation.build_orders(CONFIG, TASKS, 0), evaluation.build_orders(CONFIG, TASKS, 0)
    assert first == again
    after = evaluation.build_orders(CONFIG, TASKS, 9)
    assert [o.task_id for o in first] == [o.task_id for o in after]
    assert not {o.order_id for o in first} & {o.order_id for o in after}
    assert {o.sampling.temperature for o in first} == {0.7}


def test_a_further_temperature_orders_each_task_once_under_new_ids():
    first, greedy = evaluation.build_orders(CONFIG, TASKS, 0), evaluation.build_orders(CONFIG, TASKS, 0, 0.0)
    assert not {o.order_id for o in first} & {o.order_id for o in greedy}
    assert {o.sampling.temperature for o in greedy} == {0.0}
    many = msgspec.structs.replace(CONFIG, evaluation=Evaluation(episodes=100, temperatures=(1.0, 0.0)))
    assert len(evaluation.build_orders(many, TASKS, 0)) == 100
    assert len(evaluation.build_orders(many, TASKS, 0, 0.0)) == len(TASKS.heldout) == 7


def test_only_what_is_missing_is_ordered():
    orders = evaluation.build_orders(CONFIG, TASKS, 0)
    progress = fold(*orders[:4])
    assert evaluation.missing_orders(progress, orders) == orders[4:]
    fold(*orders[4:], *(finish(order) for order in orders), progress=progress)
    assert evaluation.missing_orders(progress, orders) == []
    assert len(evaluation.final_trajectories(progress, orders)) == 6


def test_a_fault_is_ordered_again_until_its_attempts_are_over():
    orders = evaluation.build_orders(CONFIG, TASKS, 0)
    progress = fold(*orders, finish(orders[0], "env_error", None))
    (second,) = evaluation.missing_orders(progress, orders)
    assert (second.order_id, second.attempt) == ("eval-v0-0000-1", 1)
    assert evaluation.final_trajectories(progress, orders) == {}
    fold(second, finish(second, "env_error", None), progress=progress)
    (third,) = evaluation.missing_orders(progress, orders)
    fold(third, finish(third, "policy_error", None), progress=progress)
    assert evaluation.missing_orders(progress, orders) == []
    assert evaluation.final_trajectories(progress, orders)[0].outcome == "policy_error"


def test_a_fault_is_in_no_rate():
    orders = evaluation.build_orders(CONFIG, TASKS, 0)
    outcomes = {0: finish(orders[0]), 1: finish(orders[1], "env_error", None), 2: finish(orders[2], "failure", 0.0)}
    result = evaluation.evaluation_result(0, outcomes, TASKS)
    assert (result.overall.rate, result.overall.trials, result.faults) == (0.5, 2, 1)
    assert result.per_page["click-test"].trials == 2
    assert result.per_page["enter-text"].trials == 0


def test_intervals_have_the_known_values_of_wilson_and_newcombe():
    known = wilson_rate(20, 100)
    assert (known.low, known.high) == (pytest.approx(0.1334, abs=1e-4), pytest.approx(0.2888, abs=1e-4))
    assert wilson_rate(0, 0).high == 1.0
    assert wilson_rate(0, 10).low == 0.0
    assert wilson_rate(10, 10).high == 1.0
    change, low, high = rate_difference(wilson_rate(48, 80), wilson_rate(56, 70))
    assert (change, low, high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


@given(st.integers(0, 50), st.integers(1, 50))
def test_an_interval_holds_its_rate(successes, more):
    measured = wilson_rate(successes, successes + more)
    assert 0 <= measured.low <= measured.rate <= measured.high <= 1


def test_an_endpoints_evaluation_is_not_that_of_the_trainers_first_version():
    """Both serve version 0, and a training may resume the run in which an endpoint demonstrated."""
    endpoint = {"engine": "openai", "openai": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}
    hosted = parse({"run": {"minutes": 0}, "rollout": endpoint, "evaluation": {"episodes": 4}})
    own = parse({"evaluation": {"episodes": 4}})
    ids = [{order.order_id for order in evaluation.build_orders(config, TASKS, 0)} for config in (hosted, own)]
    assert len(ids[0]) == len(ids[1]) == 4
    assert not ids[0] & ids[1]
