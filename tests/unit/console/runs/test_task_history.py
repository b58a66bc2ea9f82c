from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from console.runs.run_log import RecordMetadata
from console.runs.run_state import RunState
from console.runs.task_history import UNDER_WAY, TaskHistory
from dart_streams.config import parse
from topics.curation_log import Applied, Source


def folded(rounds=400, **curation):
    """Return the history of a circle, dispatch's inputs and orders in the order they were written, and the circle."""
    config = parse({"env": {"slots": 4}, "trainer": {"groups_per_step": 2}, "curation": curation})
    circle, state = SimulatedCircle(config, task_set(4), Odds(faults=0.05)), RunState()
    done = {"rollout-budgets": 0, "rollout-orders": 0, "trajectories": 0, "curated": 0, "task-difficulty": 0}
    for _ in range(rounds):
        circle.settle()
        for topic in done:
            log = circle.logs.get(topic, [])
            for offset in range(done[topic], len(log)):
                state.apply(RecordMetadata(topic, 0, offset, 0), log[offset].event)
                if topic in ("rollout-budgets", "rollout-orders"):
                    state.apply(RecordMetadata("curation-log", 0, 0, 0), applied(topic, offset, log[offset].id))
            done[topic] = len(log)
        circle.end_one()
        circle.train()
    return TaskHistory(config, state), circle


def applied(topic, offset, identity):
    """Return an entry of the log of dispatch, which gives the order of what it applied and of what it decided."""
    source, decisions = Source(topic=topic, partition=0, offset=offset), [identity] if topic == "rollout-orders" else []
    return Applied(agent="dispatch", source=source, decisions=decisions, state_digest="")


def test_every_group_has_a_reason_and_a_fate():
    history, circle = folded()
    histories = [group for known in history.groups.values() for group in known.values()]
    opened = {written.event.group_id for written in circle.logs["rollout-orders"]}
    assert {group.group_id for group in histories} == opened
    curated = {written.event.group_id for written in circle.logs["curated"]}
    assert {group.group_id for group in histories if group.fate.startswith("curated")} == curated
    counts = circle.states["groups"].counts
    assert sum(group.fate.startswith("dropped: all") for group in histories) == counts.equal
    for group in histories:
        if group.fate != UNDER_WAY:
            assert sum(group.outcomes.values()) >= group.rollouts
    assert any("because" in group.why and "succeeded" in group.why for group in histories)


def test_rows_count_groups_and_show_the_newest_budget():
    history, circle = folded()
    rows = history.rows()
    assert [row.task for row in rows] == sorted(task.task_id for task in task_set(4).train)
    assert sum(row.groups for row in rows) == circle.states["dispatch"].next_group
    assert sum(row.curated for row in rows) == circle.states["groups"].counts.curated
    newest = {written.event.task_id: written.event for written in circle.logs["rollout-budgets"]}
    assert [(row.rollouts, row.max_steps, row.why) for row in rows] == [
        (newest[row.task].rollouts, newest[row.task].max_steps, newest[row.task].reason) for row in rows
    ]
    pools = circle.states["groups"].pools
    assert [row.pool for row in rows] == [len(pools.get(row.task, ())) for row in rows]
    assert TaskHistory(parse({}), RunState()).rows() == []


def test_a_group_that_took_a_success_from_the_pool_says_so():
    history, circle = folded(800)
    histories = [group.fate for known in history.groups.values() for group in known.values()]
    taken = sum("with one success from the pool" in fate for fate in histories)
    assert taken == circle.states["groups"].counts.injected > 0
