"""UI-S1 (arXiv 2509.11543): steps are credited by their discounted future return."""

from collections.abc import Sequence

from dart_streams.config.section import NonNegative, Optional, Share
from dart_streams.curation.advantages import step_level_advantages
from dart_streams.curation.hooks import Own, Rules
from dart_streams.curation.members import GroupMember


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.ui-s1]``."""

    step_weight: NonNegative = 1.0
    """Weight of the advantage of a step's future return, added to its trajectory's; 0 adds none."""
    discount: Share = 0.5
    """Discount of the return, a step."""


def discounted_advantages(rewards: Sequence[float], steps: Sequence[int], discount: float) -> list[list[float]]:
    """Return, for each trajectory, the advantage of each step.

    It is (return - mean) / (sigma + 1e-6) over the group's trajectories that have this step, 0 for a single one. A
    step's return is its trajectory's reward x ``discount`` to the power of the steps that follow.
    """
    returns = [[r * discount ** (n - 1 - step) for step in range(n)] for r, n in zip(rewards, steps, strict=True)]
    advantages: list[list[float]] = [[] for _ in returns]
    for step in range(max(steps, default=0)):
        members = [index for index, n in enumerate(steps) if step < n]
        of_step = step_level_advantages([returns[index][step] for index in members], [1] * len(members))
        for index, advantage in zip(members, of_step, strict=True):
            advantages[index].append(advantage)
    return advantages


def step_advantages(
    own: Own, members: Sequence[GroupMember], rewards: Sequence[float], of_trajectories: Sequence[float]
) -> list[list[float]]:
    """Return each member's advantage of each step, its trajectory's included; empty if steps are not credited."""
    weight = own.settings.step_weight
    if not weight:
        return [[] for _ in rewards]
    of_steps = discounted_advantages(rewards, [member.steps for member in members], own.settings.discount)
    return [[whole + weight * step for step in steps] for whole, steps in zip(of_trajectories, of_steps, strict=True)]


def returns_differ(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> bool:
    """Return whether the rewards differ, or the returns of credited steps of equally rewarded trajectories."""
    if len(set(rewards)) > 1:
        return True
    credited = own.settings.step_weight != 0 and own.settings.discount != 1.0
    return credited and any(rewards) and len({member.steps for member in members}) > 1


RULES = Rules(step_advantages=step_advantages, keep_group=returns_differ)
