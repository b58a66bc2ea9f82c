"""trajectories: a finished trajectory, published by the recorder after its steps are durable."""

import msgspec

from topics.topic import Topic
from topics.values import OutcomeKind, Purpose


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a finished trajectory.

    ``steps`` counts actions. ``step_entropies`` has the mean token entropy (nats) of each step, empty for a
    demonstration. ``version_min`` and ``version_max`` are null where no token was generated.
    """

    trajectory_id: str
    order_id: str
    group_id: str
    group_size: int
    attempt: int
    task_id: str
    purpose: Purpose
    outcome: OutcomeKind
    reward: float | None
    steps: int
    step_entropies: list[float]
    version_min: int | None
    version_max: int | None
    started_ms: int
    finished_ms: int


TOPIC = Topic(name="trajectories", event=Trajectory, key="task_id")
