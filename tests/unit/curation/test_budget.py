import msgspec
import pytest

from benchmarks.curation_world import task_set
from dart_streams.config import parse
from dart_streams.curation import budget
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import InputRecord
from topics.task_difficulty import Cause, TaskDifficulty

CAUSE = Cause(trajectory_id="t", order_id="g000000/0/0", group_id="g000000", outcome="success", attempt=0)
EASY = TaskDifficulty(
    task_id="simulated/grid#0", attempts=10, successes=9.0, success_rate=0.9, longest_success=4, cause=CAUSE
)


def budget_of(difficulty=EASY, **curation):
    rules = bind_rules(parse({"curation": curation}))
    record = InputRecord("task-difficulty", 0, 7, difficulty)
    _, [decision] = budget.apply(budget.BudgetState(), record, task_set(1, max_steps=30), rules)
    assert decision.id == "budget/task-difficulty/0/7"
    return decision.event


def test_an_easy_task_gets_few_short_rollouts_and_an_unseen_one_the_base():
    result = budget_of()
    assert (result.rollouts, result.max_steps) == (3, 4)
    assert result.reason == "3 rollouts because 9 of the last 10 succeeded; at most 4 steps, the longest success"
    assert result.cause == CAUSE
    unseen = msgspec.structs.replace(EASY, attempts=0, successes=0.0, success_rate=None, longest_success=None)
    result = budget_of(unseen)
    assert (result.rollouts, result.max_steps) == (8, 30)
    assert result.reason == (
        "8 rollouts because nothing is known yet; at most 30 steps, the task's limit, as it has no success yet"
    )


def test_each_rule_can_be_switched_off():
    assert budget_of(budget={"dynamic": False}).rollouts == 8
    assert budget_of(budget={"dynamic": False, "base": 4}).rollouts == 4
    assert budget_of(length={"dynamic": False}).max_steps == 30


@pytest.mark.parametrize(("longest", "cap"), [(4, 4), (6, 6), (100, 30), (0, 1)])
def test_the_longest_success_is_the_cap_up_to_the_tasks_limit(longest, cap):
    assert budget_of(msgspec.structs.replace(EASY, longest_success=longest)).max_steps == cap
