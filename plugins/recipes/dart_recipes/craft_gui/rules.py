"""CRAFT-GUI (arXiv 2508.11360): a curriculum in phases by the length of trajectories, and a mixed reward."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dart_streams import stateless_random
from dart_streams.config.section import NonNegative, Optional, Positive, Share
from dart_streams.curation.hooks import Own, Rules
from dart_streams.curation.members import Finish, GroupMember, forget_oldest
from topics.outcomes import is_success
from topics.trajectories import StepAction, Trajectory

MOST_SCREENS = 20_000
"""Screens with remembered actions; the one that was acted on longest ago is forgotten first."""
MOST_ACTIONS = 4
"""Remembered actions of a screen, the newest ones."""


class Phase(Optional, frozen=True):
    """A phase of the curriculum."""

    groups: Positive
    """Groups in this phase."""
    max_steps: Positive
    """Only tasks with at most this many steps."""


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.craft-gui]``."""

    phases: tuple[Phase, ...] = ()
    """Phases in order, easy tasks first; after the last one all tasks take part."""
    outcome_weight: Share = 0.7
    """Weight of the judged reward."""
    valid_weight: Share = 0.05
    """Weight of the share of answers that parsed."""
    kind_weight: Share = 0.1
    """Weight of the share of right kinds, of the actions on screens on which a success of the task acted."""
    place_weight: Share = 0.15
    """Weight of the share of right kinds and places, of the same actions."""
    radius_px: NonNegative = 20.0
    """Distance within which a place is right, in pixels of the policy's image."""


class References(msgspec.Struct):
    """The actions of successes by task and screen (:func:`reference_key`), those of demonstrations included."""

    actions: dict[str, list[StepAction]] = {}


class Marks(NamedTuple):
    """Shares of a trajectory's actions in [0, 1]: valid ones, and those of right kind, and of right kind and place."""

    valid: float
    kind: float
    place: float


def tasks_of_phase(own: Own, group: int, limits: dict[str, int], task_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tasks of the phase of group number ``group``; a phase without tasks has all."""
    end = 0
    for phase in own.settings.phases:
        end += phase.groups
        if group < end:
            return tuple(task_id for task_id in task_ids if limits[task_id] <= phase.max_steps) or task_ids
    return task_ids


def reference_key(task_id: str, screen: str) -> str:
    """Return the name of a task's screen in the memory."""
    return f"{stateless_random.number('reference', task_id, screen):016x}"


def remember_successes(own: Own, event: object) -> None:
    """Remember what a success did on each screen."""
    if not isinstance(event, Trajectory) or event.reward is None or not is_success(event.reward):
        return
    known: dict[str, list[StepAction]] = own.memory.actions
    for screen, action in zip(event.screens, event.actions, strict=False):
        if screen and action.name:
            key = reference_key(event.task_id, screen)
            others = [other for other in known.pop(key, []) if other != action]
            known[key] = [*others, action][-MOST_ACTIONS:]
    forget_oldest(known, MOST_SCREENS)


def is_near(action: StepAction, reference: StepAction, radius_px: float) -> bool:
    """Return whether an action of the reference's kind is at its place; true for kinds without a place."""
    if reference.x is None or reference.y is None:
        return True
    if action.x is None or action.y is None:
        return False
    dx, dy = action.x - reference.x, action.y - reference.y
    return dx * dx + dy * dy <= radius_px * radius_px


def marks_of(member: GroupMember, references: dict[str, list[StepAction]], radius_px: float) -> Marks:
    """Return the marks of a member. A success is right in kind and place, since it is itself the reference."""
    won = is_success(member.reward)
    if not isinstance(member, Finish) or not member.own or len(member.actions) != member.steps:
        return Marks(float(won), float(won), float(won))
    valid = sum(bool(member.actions[step].name) for step in member.own) / len(member.own)
    if won:
        return Marks(valid, 1.0, 1.0)
    kinds, places = [], []
    screens = member.screens if len(member.screens) == member.steps else [""] * member.steps
    for step in member.own:
        screen, action = screens[step], member.actions[step]
        if known := references.get(reference_key(member.task_id, screen)) if screen else None:
            same = [reference for reference in known if reference.name == action.name]
            kinds.append(bool(same))
            places.append(any(is_near(action, reference, radius_px) for reference in same))
    return Marks(valid, sum(kinds) / len(kinds), sum(places) / len(places)) if kinds else Marks(valid, 0.0, 0.0)


def mixed_reward(outcome: float, marks: Marks, settings: Settings) -> float:
    """Return the weighted sum of the judged reward and the marks."""
    weighted = (
        settings.valid_weight * marks.valid + settings.kind_weight * marks.kind + settings.place_weight * marks.place
    )
    return settings.outcome_weight * outcome + weighted


def mixed_rewards(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> list[float]:
    """Return the mixed reward of each member."""
    settings: Settings = own.settings
    marks = [marks_of(member, own.memory.actions, settings.radius_px) for member in members]
    return [mixed_reward(reward, one, settings) for reward, one in zip(rewards, marks, strict=True)]


RULES = Rules(
    eligible_tasks=tasks_of_phase,
    shape_rewards=mixed_rewards,
    remember=remember_successes,
    demonstrations=True,
    memory=References,
)
