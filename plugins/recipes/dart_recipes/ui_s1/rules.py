"""UI-S1 (arXiv 2509.11543): semi-online rollouts, and steps credited by their discounted future return."""

from collections.abc import Sequence

import msgspec

from dart_recipes.recordings import Recordings, note_recording
from dart_streams import stateless_random
from dart_streams.config.section import NonNegative, Optional, Share
from dart_streams.curation.advantages import step_level_advantages
from dart_streams.curation.hooks import Own, Rules
from dart_streams.curation.members import GroupMember
from dart_streams.portable_math import power_of
from topics.rollout_orders import Guide, RolloutOrder
from topics.values import Pixels, Steps


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.ui-s1]``."""

    step_weight: NonNegative = 1.0
    """Weight of the advantage of a step's future return, added to its trajectory's; 0 adds none."""
    discount: Share = 0.5
    """Discount of the return, a step."""
    guided: Share = 1.0
    """Share of the groups whose rollouts are semi-online, of tasks with a recorded success."""
    patches: Steps = 1
    """Recorded actions that a rollout may have in place of the policy's; where it leaves once more it ends."""
    bound: Pixels = 10
    """Distance in pixels of the policy's image, in x and in y, up to which a place is the recorded one."""


def guide_order(own: Own, order: RolloutOrder) -> RolloutOrder:
    """Return the order with a recorded success of its task, if there is one and its group is semi-online."""
    settings: Settings = own.settings
    source = own.memory.trajectories.get(order.task_id)
    if source is None or stateless_random.share("semi-online", order.group_id) >= settings.guided:
        return order
    guide = Guide(trajectory_id=source, mode="patches", patches=settings.patches, bound=settings.bound)
    return msgspec.structs.replace(order, guide=guide)


def future_returns(reward: float, steps: int, own_steps: Sequence[int], discount: float) -> list[float]:
    """Return the return of each step: ``reward`` x ``discount`` to the power of the steps that follow.

    A recorded step cuts the return of all before it to 0: what follows it is not their doing.
    """
    cut = max(set(range(steps)) - set(own_steps), default=-1)
    return [reward * power_of(discount, steps - 1 - step) if step > cut else 0.0 for step in range(steps)]


def returns_of(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> list[list[float]]:
    """Return the returns of each member's steps."""
    pairs = zip(rewards, members, strict=True)
    return [future_returns(reward, member.steps, member.own, own.settings.discount) for reward, member in pairs]


def compare_steps(returns: Sequence[Sequence[float]], own_steps: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return, for each trajectory, the advantage of each step.

    It is (return - mean) / (sigma + 1e-6) over the group's trajectories whose policy took this step, 0 for a single one
    and for a recorded step.
    """
    advantages = [[0.0] * len(of_steps) for of_steps in returns]
    own_of = [frozenset(own) for own in own_steps]
    for step in sorted(frozenset().union(*own_of)):
        members = [index for index, own in enumerate(own_of) if step in own]
        of_step = step_level_advantages([returns[index][step] for index in members], [1] * len(members))
        for index, advantage in zip(members, of_step, strict=True):
            advantages[index][step] = advantage
    return advantages


def step_advantages(
    own: Own, members: Sequence[GroupMember], rewards: Sequence[float], of_trajectories: Sequence[float]
) -> list[list[float]]:
    """Return each member's advantage of each step, its trajectory's included; empty if steps are not credited."""
    weight = own.settings.step_weight
    if not weight:
        return [[] for _ in rewards]
    of_steps = compare_steps(returns_of(own, members, rewards), [member.own for member in members])
    return [[whole + weight * step for step in steps] for whole, steps in zip(of_trajectories, of_steps, strict=True)]


def returns_differ(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> bool:
    """Return whether the rewards differ, or at some credited step the returns of equally rewarded trajectories."""
    if len(set(rewards)) > 1:
        return True
    at_steps: dict[int, set[float]] = {}
    for member, returns in zip(members, returns_of(own, members, rewards), strict=True):
        for step in member.own:
            at_steps.setdefault(step, set()).add(returns[step])
    return own.settings.step_weight != 0 and any(len(values) > 1 for values in at_steps.values())


RULES = Rules(
    order=guide_order,
    step_advantages=step_advantages,
    keep_group=returns_differ,
    remember=note_recording,
    demonstrations=True,
    memory=Recordings,
)
