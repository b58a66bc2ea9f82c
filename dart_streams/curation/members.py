"""Members of a group before it is curated: finished rollouts, and stored successes."""

import msgspec

from topics.trajectories import StepAction


class Finish(msgspec.Struct, frozen=True):
    """A rewarded rollout of an open group.

    ``screens`` has the key of the screen before each step, and ``actions`` the action; both are empty in old records.
    """

    sample: int
    trajectory_id: str
    reward: float
    steps: int
    step_entropies: list[float]
    version_min: int | None
    version_max: int | None
    screens: list[str] = []
    actions: list[StepAction] = []
    task_id: str = ""


class PooledSuccess(msgspec.Struct, frozen=True):
    """A successful trajectory, demonstrated or online; ``steps`` counts actions."""

    trajectory_id: str
    order_id: str
    reward: float
    steps: int


GroupMember = Finish | PooledSuccess
