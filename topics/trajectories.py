"""trajectories: finished trajectories, published by the recorder after their steps are durable."""

import msgspec

from topics.topic import Topic
from topics.values import (
    ActionName,
    Attempt,
    Coordinate,
    EpochMs,
    Excerpt,
    GroupSize,
    Name,
    OutcomeKind,
    Prose,
    Purpose,
    Real,
    Reward,
    ScreenKey,
    Steps,
    Verdict,
    Version,
)


class StepAction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first action of a step's answer: ``name`` in the UI-TARS grammar, omitted if the answer did not parse.

    ``x`` and ``y`` are its place in pixels of the policy's image, null for an action without one.
    """

    name: ActionName = ""
    x: Coordinate | None = None
    y: Coordinate | None = None


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The summary of a finished trajectory.

    ``steps`` counts actions. ``step_entropies`` has the mean token entropy (nats) of each step, empty for a
    demonstration. ``version_min`` and ``version_max`` are null where no token was generated. ``untrainable`` is the
    reason that bars a rollout from groups (answers without tokens), and omitted otherwise. ``screens`` has the screen
    before each action, and is omitted where no screenshot is known, as in recordings of before this field. ``actions``
    has the action of each step; older recordings lack it too.

    ``guided`` is true if its order had recorded actions, and ``recorded_steps`` has the indexes of those that were
    executed: they are not the policy's. Both are omitted otherwise. An exploration has ``last_screen``, the screen
    after its last action, unless that is unknown. ``verdict`` is that of a recipe's judge, beside the environment's
    ``reward``; omitted without a judge. A check has the ``reason`` of its end, if there is one.
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
    actions: list[StepAction] = []
    guided: bool = False
    recorded_steps: list[Steps] = []
    last_screen: ScreenKey = ""
    verdict: Verdict | None = None
    reason: Excerpt = ""


TOPIC = Topic(name="trajectories", event=Trajectory, key="task_id")
