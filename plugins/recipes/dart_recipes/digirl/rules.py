"""DigiRL (arXiv 2406.11896): imitation of the steps that raised the value, of trajectories better than expected."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from dart_streams import stateless_random
from dart_streams.config.section import NonNegative, Optional, Positive, Share
from dart_streams.curation.hooks import Own, Rules
from dart_streams.curation.members import Finish, GroupMember, forget_oldest
from dart_streams.portable_math import interpolate_quantile, power_of
from topics.trajectories import Trajectory

MOST_STATES = 20_000
"""States with a remembered value; the one that was seen longest ago is forgotten first."""
RECENT = 256
"""Last trajectories of which the best share is trained on."""


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.digirl]``."""

    discount: Share = 0.5
    """Weight of the outcome in a step's advantage, to the power of the steps that follow (lambda)."""
    horizon: Positive = 20
    """Only steps with an advantage above 1 / horizon are trained on (H)."""
    trajectories: Share = 0.5
    """Share of the last trajectories that are trained on: those furthest above their task's success rate."""
    prior: NonNegative = 1.0
    """Visits of a state as which its task's success rate counts in the state's value."""


class Tally(msgspec.Struct):
    """A number of trajectories or visits, and the sum of the rewards in which they ended."""

    count: int = 0
    rewards: float = 0.0

    def add(self, reward: float) -> None:
        """Count one more."""
        self.count += 1
        self.rewards += reward


class Values(msgspec.Struct):
    """What the values are estimated from: tallies of tasks, and of states (:func:`state_key`).

    ``recent`` has the instruction-level advantages of the last trajectories.
    """

    tasks: dict[str, Tally] = {}
    states: dict[str, Tally] = {}
    recent: list[float] = []


def state_key(task_id: str, screens: Sequence[str], step: int) -> str:
    """Return the name of the state before a step: the task, and as in the paper the last two screens."""
    return f"{stateless_random.number('state', task_id, *screens[max(0, step - 1) : step + 1]):016x}"


def remember_outcome(own: Own, event: object) -> None:
    """Count the outcome of a training trajectory for its task and for each of its states; of the policy alone."""
    if not isinstance(event, Trajectory) or event.purpose != "train" or event.reward is None or event.assisted:
        return
    memory: Values = own.memory
    memory.tasks.setdefault(event.task_id, Tally()).add(event.reward)
    for step, screen in enumerate(event.screens):
        if screen:
            key = state_key(event.task_id, event.screens, step)
            tally = memory.states[key] = memory.states.pop(key, Tally())
            tally.add(event.reward)
    forget_oldest(memory.states, MOST_STATES)
    memory.recent = [*memory.recent, event.reward - task_value(memory, event.task_id)][-RECENT:]


def task_value(memory: Values, task_id: str) -> float:
    """Return the instruction-level value: the mean reward of the task's trajectories, 0 without any."""
    tally = memory.tasks.get(task_id, Tally())
    return tally.rewards / tally.count if tally.count else 0.0


def state_values(memory: Values, task_id: str, screens: Sequence[str], prior: float) -> list[float]:
    """Return the step-level value before each step: the mean reward after its state.

    The task's value counts as ``prior`` further visits.
    """
    expected = task_value(memory, task_id)
    tallies = [memory.states.get(state_key(task_id, screens, step), Tally()) for step in range(len(screens))]
    return [
        (tally.rewards + prior * expected) / (tally.count + prior) if tally.count + prior else expected
        for tally in tallies
    ]


def robust_advantages(values: Sequence[float], reward: float, discount: float) -> list[float]:
    """Return the doubly robust advantage of each step, from the value before it and the trajectory's reward r.

    It is w r + (1 - w) (V(next) + r_h - V), where w is ``discount`` to the power of the steps that follow. r_h is 0
    before the last step, whose advantage is r.
    """
    weights = [power_of(discount, following) for following in reversed(range(len(values)))]
    gains = [later - value for value, later in pairwise(values)]
    # The last step has no next value, and its weight is 1.
    return [w * reward + (1.0 - w) * gain for w, gain in zip(weights, [*gains, 0.0], strict=False)]


def step_advantages(own: Own, member: Finish) -> list[float]:
    """Return the doubly robust advantage of each step of a member; without known screens all values are the task's."""
    known = len(member.screens) == member.steps
    screens = member.screens if known else [""] * member.steps
    values = state_values(own.memory, member.task_id, screens, own.settings.prior)
    return robust_advantages(values, member.reward, own.settings.discount)


def select_steps(own: Own, rollouts: Sequence[Finish]) -> list[list[int]]:
    """Return the steps with an advantage above the bound, of the trajectories that did better than expected."""
    memory: Values = own.memory
    bound = interpolate_quantile(sorted(memory.recent), 1.0 - own.settings.trajectories) if memory.recent else 0.0
    least = 1.0 / own.settings.horizon
    chosen = [member.reward - task_value(memory, member.task_id) >= bound for member in rollouts]
    return [
        [step for step, gain in enumerate(step_advantages(own, member)) if gain > least] if good else []
        for member, good in zip(rollouts, chosen, strict=True)
    ]


def has_steps(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> bool:
    """Return whether any step of a group is selected, however equal the rewards."""
    return any(select_steps(own, [member for member in members if isinstance(member, Finish)]))


RULES = Rules(
    advantages=lambda own, members, rewards: [1.0] * len(members),
    keep_group=has_steps,
    select_steps=select_steps,
    remember=remember_outcome,
    memory=Values,
)
