"""The difficulty agent: reads trajectories, publishes a task's success rate and longest success.

The rate is the mean reward of the last ``window`` rewarded training finishes, partial credit included. Infrastructure
faults only pass through, since dispatch learns of every finish from here. Evaluations and checks are ignored, and so
are explorations, unless a recipe has found start states in one. Demonstrations do not count: an oracle's shortest path
as a length cap would end rollouts that are about to succeed. Nor do rollouts with actions that are recorded, or that a
person took.
"""

from collections.abc import Sequence

import msgspec

from dart_streams.curation import advantages
from dart_streams.curation.hooks import Memories, Own, Rules
from dart_streams.curation.order_tracker import Limits, OrderTracker, format_order_id, order_key_of
from dart_streams.curation.reducer import AgentProgress, Decision, InputRecord, cause_id
from dart_streams.portable_math import sum_in_order
from topics import rollout_orders, task_difficulty
from topics.outcomes import is_success
from topics.rollout_orders import RolloutOrder
from topics.task_difficulty import Cause, TaskDifficulty
from topics.trajectories import Trajectory

NAME = "difficulty"
WINDOW = 16
"""Rewarded finishes in a success rate: two groups, recent enough to follow the policy."""


class Finishes(msgspec.Struct):
    """A task's last rewards, oldest first, and the steps of its longest success."""

    rewards: list[float] = []
    longest_success: int | None = None


class DifficultyState(msgspec.Struct):
    """Each task's finishes; ``orders`` detects repeated finishes of an order.

    ``further`` has the open orders of recipes, by id and without their plans.
    """

    progress: AgentProgress = msgspec.field(default_factory=AgentProgress)
    orders: OrderTracker = msgspec.field(default_factory=OrderTracker, name="book")
    tasks: dict[str, Finishes] = {}
    further: dict[str, RolloutOrder] = {}
    memories: Memories = {}


def success_rate(own: Own, rewards: Sequence[float]) -> float | None:
    """Return the mean reward; None without one."""
    return sum_in_order(rewards) / len(rewards) if rewards else None


def apply(
    state: DifficultyState, record: InputRecord, window: int, limits: Limits, rules: Rules
) -> tuple[DifficultyState, list[Decision]]:
    """Apply one trajectory; raise InvalidEvent if its reward or order is invalid."""
    if record.event.purpose == "check":
        return state, []
    reward = rules.reward(state.memories, record.event)
    trajectory: Trajectory = advantages.with_reward(record.event, reward)
    starts = rules.start_states(state.memories, trajectory) if trajectory.purpose == "explore" else []
    ordered = rules.further_orders(state.memories, trajectory)
    state.further.pop(trajectory.order_id, None)
    state.further |= {order.order_id: msgspec.structs.replace(order, plan=[]) for order in ordered}
    decisions = [Decision(rollout_orders.TOPIC, order.order_id, order) for order in ordered]
    if starts:
        task = state.tasks.get(trajectory.task_id, Finishes())
        found = difficulty_of(task, trajectory, rules.success_rate(state.memories, task.rewards), starts)
        decisions.insert(0, Decision(task_difficulty.TOPIC, cause_id(NAME, record), found))
    if trajectory.purpose in ("eval", "explore"):
        return state, decisions
    if trajectory.purpose == "train":
        key = order_key_of(trajectory)
        state.orders.admit(key, trajectory.group_size, trajectory.outcome, limits.horizon)
        if state.orders.finish(key, trajectory.outcome, limits.attempts) == "repeated":
            if trajectory.outcome != "lost":
                return state, decisions
            # Dispatch never received the finish, so it still waits for an earlier attempt.
            ended = state.orders.ended_attempt(key, limits.attempts)
            trajectory = msgspec.structs.replace(trajectory, order_id=format_order_id(ended), attempt=ended.attempt)
    rules.remember(state.memories, trajectory)
    task = state.tasks.setdefault(trajectory.task_id, Finishes())
    if reward is not None and trajectory.purpose == "train" and not trajectory.assisted:
        task.rewards.append(reward)
        del task.rewards[:-window]
        if is_success(reward):
            task.longest_success = max(trajectory.steps, task.longest_success or 0)
    rate = rules.success_rate(state.memories, task.rewards)
    difficulty = Decision(task_difficulty.TOPIC, cause_id(NAME, record), difficulty_of(task, trajectory, rate))
    return state, [difficulty, *decisions]


def difficulty_of(
    task: Finishes, trajectory: Trajectory, success_rate: float | None, starts: Sequence[int] = ()
) -> TaskDifficulty:
    """Return a task's difficulty after ``trajectory``, which found the start states ``starts``."""
    return TaskDifficulty(
        task_id=trajectory.task_id,
        attempts=len(task.rewards),
        successes=sum_in_order(task.rewards),
        success_rate=success_rate,
        longest_success=task.longest_success,
        cause=Cause(
            trajectory_id=trajectory.trajectory_id,
            order_id=trajectory.order_id,
            group_id=trajectory.group_id,
            outcome=trajectory.outcome,
            attempt=trajectory.attempt,
            guided=trajectory.assisted,
            starts=list(starts),
        ),
    )
