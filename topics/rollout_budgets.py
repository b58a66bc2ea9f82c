"""rollout-budgets: the number and the maximum length of the rollouts of a task's next group."""

import msgspec

from topics.task_difficulty import Cause
from topics.topic import Topic
from topics.values import GroupSize, Name, Prose, Steps


class RolloutBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of a task's next group; ``reason`` explains ``rollouts`` and ``max_steps``."""

    task_id: Name
    rollouts: GroupSize
    max_steps: Steps
    reason: Prose
    cause: Cause


TOPIC = Topic(name="rollout-budgets", event=RolloutBudget, key="task_id")
