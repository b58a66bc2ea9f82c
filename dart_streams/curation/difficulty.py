"""The difficulty agent: trajectories in, the success rate and the longest success of a task out.

A task's rate is the mean reward of its last ``window`` rewarded finishes in training, partial credit included. Faults
of the infrastructure change nothing but are published, since dispatch learns of every finish from here. Evaluations are
ignored. A demonstration says nothing about the policy, so it counts neither as an attempt nor in the longest success:
an oracle takes the shortest path, and a length cap of that would end rollouts that are about to succeed.
"""

import msgspec

from dart_streams.curation.advantages import checked_reward
from dart_streams.curation.order_tracker import Limits, OrderKey, OrderTracker, format_order_id, order_key_of
from dart_streams.curation.reducer import AgentProgress, Decision, InputRecord, cause_id
from topics import task_difficulty
from topics.outcomes import is_success
from topics.task_difficulty import Cause, TaskDifficulty
from topics.trajectories import Trajectory

NAME = "difficulty"
WINDOW = 16
"""Rewarded finishes that a success rate is the mean of: two groups, recent enough to follow the policy."""


class Finishes(msgspec.Struct):
    """A task's last rewards, oldest first, and the steps of its longest success."""

    rewards: list[float] = []
    longest_success: int | None = None


class DifficultyState(msgspec.Struct):
    """Each task's finishes; ``orders`` distinguishes second finishes of an order from first ones."""

    progress: AgentProgress = msgspec.field(default_factory=AgentProgress)
    orders: OrderTracker = msgspec.field(default_factory=OrderTracker, name="book")
    tasks: dict[str, Finishes] = {}


def apply(
    state: DifficultyState, record: InputRecord, window: int, limits: Limits
) -> tuple[DifficultyState, list[Decision]]:
    """Apply one trajectory; raise InvalidEvent if its reward or its order is invalid."""
    trajectory: Trajectory = record.event
    reward = checked_reward(trajectory)
    if trajectory.purpose == "eval":
        return state, []
    if trajectory.purpose == "train":
        key = order_key_of(trajectory)
        state.orders.admit(key, trajectory.group_size, trajectory.outcome, limits.horizon)
        if state.orders.finish(key, trajectory.outcome, limits.attempts) == "repeated":
            if trajectory.outcome != "lost":
                return state, []
            trajectory = restate_lost(trajectory, state.orders.ended_attempt(key, limits.attempts))
    task = state.tasks.setdefault(trajectory.task_id, Finishes())
    if reward is not None and trajectory.purpose == "train":
        task.rewards.append(reward)
        del task.rewards[:-window]
        if is_success(reward):
            task.longest_success = max(trajectory.steps, task.longest_success or 0)
    return state, [Decision(task_difficulty.TOPIC, cause_id(NAME, record), difficulty_of(task, trajectory))]


def restate_lost(lost: Trajectory, ended: OrderKey) -> Trajectory:
    """Return what dispatch has to know of an order that it reports as lost and that has ended here.

    The finish that came here never came to dispatch: it stands at an earlier attempt.
    """
    return msgspec.structs.replace(lost, order_id=format_order_id(ended), attempt=ended.attempt)


def difficulty_of(task: Finishes, trajectory: Trajectory) -> TaskDifficulty:
    """Return the difficulty of a task after ``trajectory``."""
    attempts = len(task.rewards)
    successes = sum(task.rewards)
    return TaskDifficulty(
        task_id=trajectory.task_id,
        attempts=attempts,
        successes=successes,
        success_rate=successes / attempts if attempts else None,
        longest_success=task.longest_success,
        cause=Cause(
            trajectory_id=trajectory.trajectory_id,
            order_id=trajectory.order_id,
            group_id=trajectory.group_id,
            outcome=trajectory.outcome,
            attempt=trajectory.attempt,
        ),
    )
