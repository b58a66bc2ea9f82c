"""AdaGRPO of MobileRL (arXiv 2509.18119): shortest-path rewards and failure curriculum filtering.

Its positive replay is in :mod:`dart_recipes.mobilerl.training`.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from dart_streams.config.section import Count, Optional, Share
from dart_streams.curation.hooks import Own, Rules, TaskFinish, Turn
from dart_streams.curation.members import GroupMember, forget_oldest
from dart_streams.curation.order_tracker import format_group_id
from dart_streams.portable_math import exp_of
from topics.outcomes import is_success

MOST_OPEN = 4096
"""Open groups with a rewarded rollout; of those that dispatch has given up, the oldest are forgotten."""


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.mobilerl]``."""

    shortest_path: Share = 0.5
    """The share of its reward that a success loses by its excess length over the group's shortest (alpha)."""
    patience: Count = 2
    """Groups of a task in a row without a success before its weight falls."""
    cooldown: Count = 3
    """Further such groups, each at weight exp(-f) for f groups in a row, before the task is left out for good."""
    gamma: Annotated[float, Meta(ge=0, lt=1)] = 0.25
    """Share of a step's trajectories that are replayed from the buffer, largest advantage first; 0: none."""
    kappa: Count = 8
    """Successes of each step, those with the largest advantage, that enter the buffer."""
    buffer: Annotated[int, Meta(ge=1, le=4096)] = 256
    """Newest successes that the buffer keeps. No other bound applies to their age."""


class FailedGroups(msgspec.Struct):
    """Groups in a row without a success, by task; open groups with a rewarded rollout, and whether one succeeded."""

    failed: dict[str, int] = {}
    open: dict[str, bool] = {}


def shortest_path(rewards: Sequence[float], steps: Sequence[int], alpha: float) -> list[float]:
    """Return a group's rewards, each success lowered by ``alpha`` x (T - T_min) / T for its T steps.

    T_min is the length of the shortest success.
    """
    shortest = min((n for reward, n in zip(rewards, steps, strict=True) if is_success(reward)), default=0)
    return [
        reward * (1.0 - alpha * (n - shortest) / n) if is_success(reward) and n else reward
        for reward, n in zip(rewards, steps, strict=True)
    ]


def shape_rewards(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> list[float]:
    """Return a group's rewards with the shortest-path adjustment."""
    return shortest_path(rewards, [member.steps for member in members], own.settings.shortest_path)


def count_failures(own: Own, event: object) -> None:
    """Count a task's groups without a success; a success begins anew, and a group of faults alone does not count."""
    if not isinstance(event, TaskFinish):
        return
    memory, group_id = own.memory, format_group_id(event.group)
    if event.rewarded:
        memory.open[group_id] = event.success or memory.open.get(group_id, False)
    if event.ends_group and group_id in memory.open:
        succeeded = memory.open.pop(group_id)
        memory.failed[event.task_id] = 0 if succeeded else memory.failed.get(event.task_id, 0) + 1
    forget_oldest(memory.open, MOST_OPEN)


def failure_weight(failed: int, patience: int, cooldown: int) -> float:
    """Return the weight of a task after ``failed`` groups in a row without a success."""
    if failed < patience:
        return 1.0
    return exp_of(-failed) if failed < patience + cooldown else 0.0


def turn_weight(own: Own, turn: Turn) -> float:
    """Return the probability that a task takes its turn."""
    return failure_weight(own.memory.failed.get(turn.task_id, 0), own.settings.patience, own.settings.cooldown)


RULES = Rules(shape_rewards=shape_rewards, task_weight=turn_weight, remember=count_failures, memory=FailedGroups)
