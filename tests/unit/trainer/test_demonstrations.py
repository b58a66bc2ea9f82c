"""Demonstrations for the warm-up become orders."""

from tests.unit.policy.test_recipe import TASKS
from trainer.warmup.demonstrations import demonstration_orders


def test_demonstrations_have_distinct_tasks_up_to_all_in_a_seeds_order() -> None:
    orders = demonstration_orders(TASKS.demonstration, 6, seed=0)
    assert len({order.task_id for order in orders}) == 6
    assert {order.task_id for order in orders} <= {task.task_id for task in TASKS.demonstration}
    assert {order.purpose for order in orders} == {"demonstration"}
    assert len({order.order_id for order in orders}) == 6
    assert len(demonstration_orders(TASKS.demonstration, 1000, seed=0)) == 10
    assert demonstration_orders(TASKS.demonstration, 5, 1) == demonstration_orders(TASKS.demonstration, 5, 1)
