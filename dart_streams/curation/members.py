"""Members of a group before it is curated: finished rollouts, and stored successes."""

import msgspec

from topics.trajectories import StepAction


class Finish(msgspec.Struct, frozen=True):
    """A rewarded rollout of an open group.

    ``screens`` has the key of the screen before each step, and ``actions`` the action; both are empty in old records.
    ``recorded`` has the indexes of the steps that a recording or a person took in place of the policy.
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
    recorded: list[int] = []

    @property
    def own(self) -> list[int]:
        """The indexes of the policy's own steps, in order."""
        every = range(self.steps)
        return [step for step in every if step not in self.recorded] if self.recorded else list(every)


class PooledSuccess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A successful trajectory, demonstrated or online; ``steps`` counts actions.

    With ``as_online`` it is selected and weighed as an online one, by its entropies where each step has one.
    """

    trajectory_id: str
    order_id: str
    reward: float
    steps: int
    as_online: bool = False
    step_entropies: list[float] = []

    @property
    def own(self) -> list[int]:
        """The indexes of all steps: a stored success has none of another recording."""
        return list(range(self.steps))


GroupMember = Finish | PooledSuccess
