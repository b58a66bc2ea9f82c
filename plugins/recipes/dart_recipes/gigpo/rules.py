"""GiGPO (arXiv 2505.10978): steps on equal screens are compared by their discounted future return."""

from collections.abc import Sequence

from dart_streams.config.section import NonNegative, Optional, Share
from dart_streams.curation.advantages import EPSILON, reward_statistics
from dart_streams.curation.hooks import Own, Rules
from dart_streams.curation.members import Finish, GroupMember
from dart_streams.portable_math import power_of


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.gigpo]``."""

    step_weight: NonNegative = 1.0
    """Weight of a step's advantage over the same screen's other steps, added to its trajectory's (omega)."""
    discount: Share = 0.95
    """Discount of the return, a step (gamma)."""
    by_deviation: bool = True
    """Whether advantages are divided by the standard deviation of what they are compared with, not by 1 (F_norm)."""


def relative_values(values: Sequence[float], by_deviation: bool) -> list[float]:
    """Return each value less the mean, divided by the unbiased standard deviation + 1e-6; 0 for a single value."""
    mean, std = reward_statistics(values, [1] * len(values))
    return [(value - mean) / (std + EPSILON if by_deviation else 1.0) for value in values]


def discounted_returns(rewards: Sequence[float], steps: Sequence[int], discount: float) -> list[list[float]]:
    """Return each step's return, by trajectory: the reward x ``discount`` to the power of the steps that follow."""
    return [[r * power_of(discount, n - 1 - step) for step in range(n)] for r, n in zip(rewards, steps, strict=True)]


def returns_by_screen(
    screens: Sequence[Sequence[str]], returns: Sequence[Sequence[float]]
) -> dict[str, list[tuple[int, int, float]]]:
    """Return trajectory, step and return of the steps on each known screen; those of an anchor state in the paper."""
    found: dict[str, list[tuple[int, int, float]]] = {}
    for member, (shown, of_steps) in enumerate(zip(screens, returns, strict=True)):
        for step, (screen, value) in enumerate(zip(shown, of_steps, strict=True)):
            if screen:
                found.setdefault(screen, []).append((member, step, value))
    return found


def screen_advantages(
    screens: Sequence[Sequence[str]], returns: Sequence[Sequence[float]], by_deviation: bool
) -> list[list[float]]:
    """Return each step's advantage over all steps of the group on the same screen; 0 for a screen seen once."""
    advantages = [[0.0] * len(of_steps) for of_steps in returns]
    for seen in returns_by_screen(screens, returns).values():
        relative = relative_values([value for _, _, value in seen], by_deviation)
        for (member, step, _), advantage in zip(seen, relative, strict=True):
            advantages[member][step] = advantage
    return advantages


def known_screens(member: GroupMember) -> list[str]:
    """Return the screen before each step of the policy; empty texts where unknown, as for a stored success."""
    if not isinstance(member, Finish) or len(member.screens) != member.steps:
        return [""] * member.steps
    own = frozenset(member.own)
    return [screen if step in own else "" for step, screen in enumerate(member.screens)]


def step_advantages(
    own: Own, members: Sequence[GroupMember], rewards: Sequence[float], of_trajectories: Sequence[float]
) -> list[list[float]]:
    """Return each member's advantage of each step, its trajectory's included."""
    settings: Settings = own.settings
    returns = discounted_returns(rewards, [member.steps for member in members], settings.discount)
    of_steps = screen_advantages([known_screens(member) for member in members], returns, settings.by_deviation)
    weight = settings.step_weight
    return [[whole + weight * step for step in steps] for whole, steps in zip(of_trajectories, of_steps, strict=True)]


def returns_differ(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> bool:
    """Return whether the rewards differ, or the returns on some screen where steps are credited."""
    if len(set(rewards)) > 1:
        return True
    returns = discounted_returns(rewards, [member.steps for member in members], own.settings.discount)
    by_screen = returns_by_screen([known_screens(member) for member in members], returns)
    return own.settings.step_weight != 0 and any(len({value for *_, value in seen}) > 1 for seen in by_screen.values())


RULES = Rules(
    advantages=lambda own, members, rewards: relative_values(rewards, own.settings.by_deviation),
    step_advantages=step_advantages,
    keep_group=returns_differ,
)
