"""task-difficulty: the success rate of a task after each finished trajectory."""

import msgspec

from topics.topic import Topic
from topics.values import Attempt, Count, Name, OutcomeKind, Real, Reward, Steps


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The finished trajectory behind an event, passed on so that dispatch reads every finish from its own input.

    ``guided`` is true if the outcome is not the policy's alone: its order had recorded actions, or a person took steps.
    It is omitted otherwise. ``starts`` are start states that an
    exploration found: the numbers of its actions after which another rollout of its task may begin.
    """

    trajectory_id: Name
    order_id: Name
    group_id: Name
    outcome: OutcomeKind
    attempt: Attempt
    guided: bool = False
    starts: list[Steps] = []


class TaskDifficulty(msgspec.Struct, frozen=True, kw_only=True):
    """``success_rate`` is over the sliding window, null before the first rewarded finish.

    ``longest_success`` counts steps, null before the first success.
    """

    task_id: Name
    attempts: Count
    successes: Real
    success_rate: Reward | None
    longest_success: Steps | None
    cause: Cause


TOPIC = Topic(name="task-difficulty", event=TaskDifficulty, key="task_id")
