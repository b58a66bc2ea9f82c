"""trajectories: finished trajectories, published by the recorder after their steps are durable."""

from typing import Annotated

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

MOST_TAKE_OVERS = 16


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

    ``person_steps`` has the indexes of the actions that people took in place of the policy, and ``take_overs`` the ids
    of their take-overs, at most the first 16. Both are omitted where nobody acted. Steps without a person are the
    policy's.
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
    person_steps: list[Steps] = []
    take_overs: Annotated[list[Name], msgspec.Meta(max_length=MOST_TAKE_OVERS)] = []

    @property
    def assisted(self) -> bool:
        """Whether the outcome is not the policy's alone: its order had a recording, or a person took steps."""
        return self.guided or bool(self.person_steps)

    @property
    def own_steps(self) -> list[int]:
        """The indexes of the actions that the policy took, in order."""
        others = {*self.recorded_steps, *self.person_steps}
        return [step for step in range(self.steps) if step not in others]

    @property
    def own_reward(self) -> float | None:
        """The reward that counts in success rates: None for a trajectory in which a person took steps."""
        return None if self.person_steps else self.reward


TOPIC = Topic(name="trajectories", event=Trajectory, key="task_id")
