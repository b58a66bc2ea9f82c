"""UI-TARS-2 (arXiv 2509.02544): rewards with a format and a length penalty, curated for a critic.

The critic itself is in :mod:`dart_recipes.ui_tars_2.training`.
"""

from collections.abc import Sequence

from dart_streams.config.section import AboveZero, Count, NonNegative, Optional, Positive, Share
from dart_streams.curation.hooks import Own, Rules
from dart_streams.curation.members import Finish, GroupMember


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.ui-tars-2]``."""

    alpha: AboveZero = 1.0
    """The policy's lambda of a trajectory of l answer tokens is 1 - 1 / (``alpha`` l), at least 0. The paper's 0.05 is
    for chains of thousands of tokens."""
    critic_lambda: Share = 1.0
    """Lambda of the value targets; 1: the reward itself."""
    value_pretraining_steps: Count = 10
    """First optimizer steps that train the value head alone."""
    value_updates: Positive = 8
    """Updates of the value head in a step."""
    value_learning_rate: AboveZero = 0.06
    """AdamW's learning rate of the value head, times the width of the policy's hidden states."""
    format_penalty: NonNegative = 0.1
    """Reward that a trajectory loses by the share of its answers that did not parse."""
    length_penalty: NonNegative = 0.005
    """Reward that a trajectory loses for each action."""


def invalid_share(member: GroupMember) -> float:
    """Return the share of a member's own answers that did not parse; 0 where its record has no actions."""
    if not isinstance(member, Finish) or not member.own or len(member.actions) != member.steps:
        return 0.0
    return sum(not member.actions[step].name for step in member.own) / len(member.own)


def shape_rewards(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> list[float]:
    """Return the rewards less the penalties of format and length."""
    settings: Settings = own.settings
    return [
        reward - settings.format_penalty * invalid_share(member) - settings.length_penalty * member.steps
        for member, reward in zip(members, rewards, strict=True)
    ]


def keep_group(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> bool:
    """Return True: a critic learns from groups of equal rewards too."""
    return True


# The trainer makes advantages of the shaped rewards.
RULES = Rules(
    shape_rewards=shape_rewards, keep_group=keep_group, advantages=lambda own, members, rewards: list(rewards)
)
