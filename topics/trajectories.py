"""trajectories: finished trajectories, published by the recorder after their steps are durable."""

import msgspec

from topics.topic import Topic
from topics.values import (
    Attempt,
    EpochMs,
    GroupSize,
    Name,
    OutcomeKind,
    Prose,
    Purpose,
    Real,
    Reward,
    ScreenKey,
    Steps,
    Version,
)


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The summary of a finished trajectory.

    ``steps`` counts actions. ``step_entropies`` has the mean token entropy (nats) of each step, empty for a
    demonstration. ``version_min`` and ``version_max`` are null where no token was generated. ``untrainable`` is the
    reason that bars a rollout from groups (answers without tokens), and omitted otherwise. ``screens`` has the screen
    before each action, and is omitted where no screenshot is known, as in recordings of before this field.
    """

    trajectory_id: Name
    order_id: Name
    group_id: Name
    group_size: GroupSize
    attempt: Attempt
    task_id: Name
    purpose: Purpose
    outcome: OutcomeKind
    reward: Reward | None
    steps: Steps
    step_entropies: list[Real]
    version_min: Version | None
    version_max: Version | None
    started_ms: EpochMs
    finished_ms: EpochMs
    untrainable: Prose = ""
    screens: list[ScreenKey] = []


TOPIC = Topic(name="trajectories", event=Trajectory, key="task_id")
