"""The budget agent: reads difficulty, decides the rollouts and step limit of a task's next group.

It keeps no state of tasks: the difficulty event has all inputs.
"""

from collections.abc import Sequence

import msgspec

from dart_streams.config.curation import Budget
from dart_streams.config.tasks import TaskSet
from dart_streams.curation.hooks import Memories, Own, Rules
from dart_streams.curation.reducer import AgentProgress, Decision, InputRecord, cause_id
from topics import rollout_budgets
from topics.rollout_budgets import RolloutBudget
from topics.task_difficulty import TaskDifficulty

NAME = "budget"
MIN_ROLLOUTS = 2
"""Rollouts of a task that always succeeds: the fewest that can differ."""
ROUNDING = 1e-9


class BudgetState(msgspec.Struct):
    """The agent's progress, and the recipes' memories."""

    progress: AgentProgress = msgspec.field(default_factory=AgentProgress)
    memories: Memories = {}


def rollouts_for(success_rate: float | None, base: int = 8, threshold: float = 0.6) -> int:
    """Return N: ``base`` rollouts up to a success rate of ``threshold``, fewer above it.

    By default N = floor(9 / rate - 7) above 0.6, as in the authors' release: the line in 1 / rate from ``base`` at
    ``threshold`` to 2 at a rate of 1.
    """
    if success_rate is None or success_rate <= threshold or base <= MIN_ROLLOUTS:
        return max(1, base)
    slope = (base - MIN_ROLLOUTS) * threshold / (1.0 - threshold)
    return min(base, max(1, int(slope / success_rate - slope + MIN_ROLLOUTS + ROUNDING)))


def length_cap(success_lengths: Sequence[int], default: int) -> int:
    """Return the step limit of a rollout: the longest success, or ``default`` without one. Failures never raise it."""
    return max(success_lengths, default=default)


def apply(state: BudgetState, record: InputRecord, tasks: TaskSet, rules: Rules) -> tuple[BudgetState, list[Decision]]:
    """Turn one task's difficulty into the budget of its next group."""
    difficulty: TaskDifficulty = record.event
    known = difficulty.task_id in tasks
    limit = tasks.get(difficulty.task_id).max_steps if known else max(1, tasks.most_steps)
    rules.remember(state.memories, difficulty)
    rollouts, why_rollouts = rules.rollouts(state.memories, difficulty)
    max_steps, why_steps = rules.step_limit(state.memories, difficulty, limit)
    orders, steps = count_noun(rollouts, "rollout"), count_noun(max_steps, "step")
    budget = RolloutBudget(
        task_id=difficulty.task_id,
        rollouts=rollouts,
        max_steps=max_steps,
        reason=f"{orders} {why_rollouts}; at most {steps}, {why_steps}",
        cause=difficulty.cause,
    )
    return state, [Decision(rollout_budgets.TOPIC, cause_id(NAME, record), budget)]


def rollouts_of(own: Own, difficulty: TaskDifficulty) -> tuple[int, str]:
    """Return the number of rollouts, and the reason as text."""
    budget: Budget = own.settings.budget
    if not budget.dynamic:
        return max(1, budget.base), "as always (curation.budget.dynamic is off)"
    rollouts = rollouts_for(difficulty.success_rate, budget.base, budget.threshold)
    if difficulty.success_rate is None:
        return rollouts, "because nothing is known yet"
    return rollouts, f"because {difficulty.successes:.3g} of the last {difficulty.attempts} succeeded"


def steps_of(own: Own, difficulty: TaskDifficulty, limit: int) -> tuple[int, str]:
    """Return the step limit of a rollout, at most the task's ``limit``, and the reason as text."""
    if not own.settings.length.dynamic:
        return limit, "the task's limit (curation.length.dynamic is off)"
    longest = difficulty.longest_success
    if longest is None:
        return limit, "the task's limit, as it has no success yet"
    cap = max(1, length_cap([longest], limit))
    if cap >= limit:
        return limit, "the task's limit"
    return cap, "the longest success"


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun, e.g. ``1 rollout`` or ``3 rollouts``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
