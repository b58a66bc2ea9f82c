"""Ids are in the order in which people count."""

from console.views.page.natural_order import natural_key


def test_numbers_in_ids_count_as_numbers():
    ids = ["box#10", "box#2", "steps-10#1", "steps-3#1", "box", "7", "rollout-2", "rollout-10"]
    ordered = ["7", "box", "box#2", "box#10", "rollout-2", "rollout-10", "steps-3#1", "steps-10#1"]
    assert sorted(ids, key=natural_key) == ordered
