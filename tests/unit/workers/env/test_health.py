"""Whose fault a failed reset is: the slot's, the task's or the host's; and how long it rests."""

from hypothesis import given
from hypothesis import strategies as st

from workers.env.health import HOST, HOST_SPAN_S, SLOT, TASK, WorkerHealth

OUTCOMES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.booleans(), st.floats(0.0, 100.0)), max_size=80
)


def kinds(rests) -> list[str]:
    return [rest.kind for rest in rests]


def test_a_slot_rests_after_failures_in_a_row_twice_as_long_each_time():
    health = WorkerHealth(10)
    rests = [health.reset_failed(0, f"t{n % 2}", "no X server", float(n)) for n in range(SLOT.after + 2)]
    assert [kinds(found) for found in rests] == [[]] * (SLOT.after - 1) + [["slot"]] * 3
    assert [found[0].rest_s for found in rests[SLOT.after - 1 :]] == [SLOT.first_s * 2**n for n in range(3)]
    assert rests[-1][0].reason == "no X server"
    now_s = float(SLOT.after + 1)
    assert health.slot_rest_s(0, now_s) == rests[-1][0].rest_s
    assert health.slot_rest_s(0, now_s + rests[-1][0].rest_s) == 0
    assert health.slot_rest_s(1, now_s) == 0, "its neighbor takes orders"


def test_a_success_in_between_keeps_a_slot_at_work():
    health = WorkerHealth(10)
    for n in range(20):
        assert not health.reset_failed(0, f"t{n}", "", float(n))
        if n % (SLOT.after - 1) == SLOT.after - 2:
            health.reset_succeeded(0, "good", float(n))
    assert health.slot_rest_s(0, 20.0) == 0


def test_a_task_that_alone_fails_is_set_aside_and_tried_again_later():
    health = WorkerHealth(10)
    for n in range(TASK.after):
        rests = health.reset_failed(n, "bad", "step 1 of 1 (open): no such file", float(n))
        health.reset_succeeded(n, "good", n + 0.5)
    assert kinds(rests) == ["task"]
    assert (rests[0].name, rests[0].rest_s) == ("bad", TASK.first_s)
    refusal = health.refusal("bad", TASK.after + 1.0)
    assert "set aside" in refusal
    assert "no such file" in refusal
    assert not health.refusal("good", TASK.after + 1.0)
    later_s = TASK.after - 1 + TASK.first_s
    assert not health.refusal("bad", later_s), "a trial"
    [again] = health.reset_failed(0, "bad", "", later_s)
    assert (again.kind, again.rest_s) == ("task", 2 * TASK.first_s)


def test_a_task_is_not_blamed_while_nothing_else_has_succeeded():
    health = WorkerHealth(10)
    health.reset_succeeded(0, "good", 0.0)
    for n in range(4 * HOST.after):
        assert "task" not in kinds(health.reset_failed(n, "bad", "", 1.0 + n))
    health.reset_succeeded(0, "good", 100.0)
    assert kinds(health.reset_failed(0, "bad", "", 101.0)) == ["task"]


def test_a_host_on_which_all_resets_fail_is_drained_alone():
    health = WorkerHealth(10)
    rests = [health.reset_failed(n, f"t{n % 4}", "bwrap: no space", 2.0 * n) for n in range(HOST.after)]
    assert [kinds(found) for found in rests] == [[]] * (HOST.after - 1) + [["host"]]
    assert rests[-1][0].rest_s == HOST.first_s
    assert health.on_trial
    now_s = 2.0 * (HOST.after - 1)
    assert not any(health.refusal(f"t{n}", now_s) for n in range(4))
    assert not any(health.slot_rest_s(n, now_s) for n in range(HOST.after))
    assert not health.reset_failed(1, "t1", "", now_s + 0.5), "one that was under way"
    later_s = now_s + HOST.first_s
    [again] = health.reset_failed(0, "t9", "", later_s)
    assert (again.kind, again.rest_s) == ("host", 4 * HOST.first_s)
    health.reset_succeeded(0, "t9", later_s + 1)
    assert not health.on_trial


def test_all_slots_that_fail_at_once_do_not_drain_a_host():
    """As when a browser dies, and is started again."""
    health = WorkerHealth(10)
    found = [kind for n in range(64) for kind in kinds(health.reset_failed(n, f"t{n}", "", n / 64))]
    assert "host" not in found
    assert kinds(health.reset_failed(0, "t0", "", HOST_SPAN_S)) == ["host"]


def test_one_bad_task_does_not_drain_a_host_unless_it_is_the_only_one():
    for tasks, drained in ((10, False), (1, True)):
        health = WorkerHealth(tasks)
        found = [kind for n in range(HOST.after) for kind in kinds(health.reset_failed(n, "bad", "", 2.0 * n))]
        assert ("host" in found) == drained


def test_the_score_follows_what_happens():
    health = WorkerHealth(10)
    for n in range(40):
        health.reset_failed(n, f"t{n}", "", 0.0)
    assert health.host.score > 0.9
    for _ in range(40):
        health.reset_succeeded(0, "t", 0.0)
    assert 0.0 < health.host.score < 0.1


@given(OUTCOMES)
def test_rests_are_bounded_and_end_by_a_success_or_by_time(outcomes):
    health, now_s = WorkerHealth(3), 0.0
    for slot, task, failed, after_s in outcomes:
        now_s += after_s
        if failed:
            for rest in health.reset_failed(slot, task, "why", now_s):
                assert 0 < rest.rest_s <= {"slot": SLOT, "task": TASK, "host": HOST}[rest.kind].longest_s
        else:
            health.reset_succeeded(slot, task, now_s)
            assert health.slot_rest_s(slot, now_s) == 0
            assert not health.refusal(task, now_s)
            assert not health.on_trial
        assert 0 <= health.host.score <= 1
    now_s += max(rule.longest_s for rule in (SLOT, TASK, HOST))
    assert not any(health.slot_rest_s(slot, now_s) for slot in range(4))
    assert not any(health.refusal(task, now_s) for task in "abc")


def test_each_rest_of_a_lethal_task_is_twice_as_long_as_the_last():
    health = WorkerHealth(tasks_in_all=5)
    for times, rest_s in ((1, 60.0), (2, 120.0), (30, 3600.0)):
        rest = health.ended_workers("task", times, f"orders of it have ended their worker {times} times over", 1000.0)
        assert (rest.kind, rest.rest_s) == ("task", rest_s)
        assert health.refusal("task", 1000.0 + rest_s - 1.0) == (
            f"set aside on this host for another 1 s: orders of it have ended their worker {times} times over"
        )
        assert health.refusal("task", 1000.0 + rest_s) == ""
    health.reset_succeeded(0, "task", 5000.0)
    assert health.refusal("task", 1000.0 + 1.0) == ""
