from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.config import parse
from dart_streams.curation.reducer import InputRecord
from dart_streams.curation.task_history import UNDER_WAY, TaskHistory


def folded(rounds=400, **curation):
    """Return the history of a circle, with the records in the order they were written, and the circle."""
    config = parse({"env": {"slots": 4}, "trainer": {"groups_per_step": 2}, "curation": curation})
    circle, history = SimulatedCircle(config, task_set(4), Odds(faults=0.05)), TaskHistory(config)
    done = {"rollout-budgets": 0, "rollout-orders": 0, "trajectories": 0, "curated": 0, "task-difficulty": 0}
    for _ in range(rounds):
        circle.settle()
        for topic in done:
            log = circle.logs.get(topic, [])
            for offset in range(done[topic], len(log)):
                fold(history, topic, InputRecord(topic, 0, offset, log[offset].event, log[offset].id))
            done[topic] = len(log)
        circle.end_one()
        circle.train()
    return history, circle


def fold(history, topic, record):
    match topic:
        case "rollout-budgets":
            history.budget(record.event)
        case "rollout-orders":
            history.order(record.event)
        case "trajectories":
            history.trajectory(record)
        case "curated":
            history.curated(record.event)
        case "task-difficulty":
            history.rate(record.event.task_id, record.event.success_rate)


def test_every_group_is_told_with_its_reason_and_its_fate():
    history, circle = folded()
    told = [group for known in history.tasks.values() for group in known.groups.values()]
    opened = {written.event.group_id for written in circle.logs["rollout-orders"]}
    assert {group.group_id for group in told} == opened
    curated = {written.event.group_id for written in circle.logs["curated"]}
    assert {group.group_id for group in told if group.fate.startswith("curated")} == curated
    counts = circle.states["groups"].counts
    assert sum(group.fate.startswith("dropped: all") for group in told) == counts.equal
    for group in told:
        if group.fate != UNDER_WAY:
            assert sum(group.outcomes.values()) >= group.rollouts
    assert any("because" in group.why and "succeeded" in group.why for group in told)


def test_the_rows_count_what_is_told_and_show_the_newest_budget():
    history, circle = folded()
    rows = history.rows()
    assert [row.task for row in rows] == sorted(task.task_id for task in task_set(4).train)
    assert sum(row.groups for row in rows) == circle.states["dispatch"].next_group
    assert sum(row.curated for row in rows) == circle.states["groups"].counts.curated
    newest = {written.event.task_id: written.event for written in circle.logs["rollout-budgets"]}
    assert [(row.rollouts, row.max_steps, row.why) for row in rows] == [
        (newest[row.task].rollouts, newest[row.task].max_steps, newest[row.task].reason) for row in rows
    ]
    assert {row.task: row.pool for row in rows} == {
        row.task: len(circle.states["groups"].pools.get(row.task, ())) for row in rows
    }


def test_a_group_that_took_a_success_from_the_pool_says_so():
    history, circle = folded(800)
    told = [group.fate for known in history.tasks.values() for group in known.groups.values()]
    assert sum("with one success from the pool" in fate for fate in told) == circle.states["groups"].counts.injected > 0


def test_nothing_yet_is_an_empty_table():
    assert TaskHistory(parse({})).rows() == []
