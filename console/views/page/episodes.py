"""Trajectories for the page: the table, the steps, the prompt of a step, and the page of any id. Pure."""

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from console.lineage.traces import RequestSegment
from console.runs.feedback import FeedbackRow, rows_on
from console.runs.run_state import RunState
from console.runs.token_texts import Pieces, token_texts
from console.views.page.source import NotFound
from dart_streams import screens
from dart_streams.actions import Unparsable
from dart_streams.actions.sequence import parse_all
from dart_streams.config import Policy
from topics.curated import Member
from topics.observations import Observation
from topics.trajectories import Trajectory
from topics.values import BlobRef

FILTERS = ("task_id", "outcome", "purpose", "group_id")
PAGE = 100
"""Rows of a page of the table."""
SHARED = ("trajectory_id", "task_id", "group_id", "purpose", "outcome", "reward", "steps", "version_min", "version_max")
"""Fields that a row copies from its trajectory."""


class TrajectoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A finished trajectory in the table; ``groups`` are the groups that were curated with it."""

    trajectory_id: str
    task_id: str
    group_id: str
    purpose: str
    outcome: str
    reward: float | None
    steps: int
    version_min: int | None
    version_max: int | None
    finished_ms: int
    wall_ms: int
    groups: list[str]


class TrajectoryPage(msgspec.Struct, frozen=True):
    """Rows, the newest first. ``next`` is the cursor of the next page or null; ``total`` ignores the filter."""

    rows: list[TrajectoryRow]
    next: int | None
    total: int


def trajectory_page(state: RunState, wanted: Mapping[str, str], cursor: int | None) -> TrajectoryPage:
    """Return the trajectories that match a filter, from a cursor on.

    A cursor counts trajectories from the oldest, so that new ones do not shift it.
    """
    total = len(state.trajectories)
    end = total if cursor is None else min(cursor, total)
    older = itertools.islice(reversed(state.trajectories.values()), total - end, None)
    rows: list[TrajectoryRow] = []
    for number, trajectory in zip(range(end - 1, -1, -1), older, strict=False):
        if is_wanted(trajectory, wanted):
            rows.append(row_of(trajectory, state))
            if len(rows) == PAGE:
                return TrajectoryPage(rows, number or None, total)
    return TrajectoryPage(rows, None, total)


def is_wanted(trajectory: Trajectory, wanted: Mapping[str, str]) -> bool:
    """Return whether each field of a trajectory has its ``wanted`` value; an empty text matches any."""
    return all(str(getattr(trajectory, field)) == value for field, value in wanted.items() if value)


def row_of(trajectory: Trajectory, state: RunState) -> TrajectoryRow:
    """Return the row of a trajectory."""
    return TrajectoryRow(
        **{name: getattr(trajectory, name) for name in SHARED},
        finished_ms=trajectory.finished_ms,
        wall_ms=trajectory.finished_ms - trajectory.started_ms,
        groups=state.groups_of.get(trajectory.trajectory_id, []),
    )


class PlayedEpisode(msgspec.Struct, frozen=True):
    """A finished episode in a comparison or a report."""

    trajectory_id: str
    outcome: str
    reward: float | None
    steps: int
    version_min: int | None
    version_max: int | None


class EpisodePair(msgspec.Struct, frozen=True):
    """The episodes of a task on both sides of a comparison; null without one."""

    task_id: str
    a: PlayedEpisode | None
    b: PlayedEpisode | None


def pair_episodes(task_id: str, a: Trajectory | None, b: Trajectory | None) -> EpisodePair:
    """Return two trajectories of a task as a pair."""
    fields = PlayedEpisode.__struct_fields__
    sides = [PlayedEpisode(*(getattr(side, name) for name in fields)) if side else None for side in (a, b)]
    return EpisodePair(task_id, *sides)


class Membership(msgspec.Struct, frozen=True):
    """A trajectory as a member of a curated group, and the optimizer steps that took the group."""

    group_id: str
    member: Member
    train_steps: list[int]


def curated_member(group_id: str, trajectory_id: str, state: RunState) -> Member | None:
    """Return a trajectory's part in a group; None unless the group was curated with it."""
    group = state.groups.get(group_id)
    return next((one for one in group[0].members if one.trajectory_id == trajectory_id), None) if group else None


class Point(msgspec.Struct, frozen=True):
    """A point on a screen in its pixels."""

    x: float
    y: float


def points_of(text: str, screen: BlobRef, policy: Policy) -> tuple[Point, ...]:
    """Return the points of a step's actions in order, converted from the policy's pixels to the screen's."""
    try:
        actions = parse_all(text)
    except Unparsable:
        return ()
    image = image_of(screen, policy)
    return tuple(
        Point(getattr(action, x) * screen.width / image.width, getattr(action, y) * screen.height / image.height)
        for action in actions
        for x, y in (("x", "y"), ("to_x", "to_y"))
        if hasattr(action, x)
    )


class ImageSize(msgspec.Struct, frozen=True):
    """Size of the image that the policy sees, in pixels: actions name places on it."""

    width: int
    height: int


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """An observation, the points of its action on the screen before it, and the segments of the action's time.

    ``image`` is the policy's image of this observation's screen. ``texts`` has the text of each of the action's tokens
    (see :func:`token_texts`); empty without a tokenizer.
    """

    event: Observation
    image: ImageSize | None = None
    points: tuple[Point, ...] = ()
    segments: Sequence[RequestSegment] = ()
    texts: Sequence[str | None] = ()


def image_of(screen: BlobRef, policy: Policy) -> ImageSize:
    """Return the size at which the policy sees a screen."""
    return ImageSize(*screens.smart_resize(screen.width, screen.height, policy.min_pixels, policy.max_pixels))


class GivenFeedback(msgspec.Struct, frozen=True):
    """A feedback on a trajectory with its fate, and a correction's points on the screen of its step."""

    row: FeedbackRow
    points: tuple[Point, ...] = ()


class TrajectoryView(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory, running or finished; ``summary`` is null until it has finished."""

    trajectory_id: str
    running: bool
    summary: Trajectory | None
    steps: list[StepView]
    groups: list[Membership]
    imitated_by: list[int]
    feedback: list[GivenFeedback]


def view_trajectory(
    identity: str,
    state: RunState,
    observations: Sequence[Observation],
    segments: Mapping[int, Sequence[RequestSegment]],
    policy: Policy,
    pieces: Pieces = MappingProxyType({}),
) -> TrajectoryView:
    """Return a trajectory step by step; raise :class:`NotFound` for an unknown id.

    A trajectory that has just begun may have no step in the store yet.
    """
    if not observations and identity not in state.trajectories and identity not in state.open:
        raise NotFound(f"no trajectory {identity!r} in this run")
    return TrajectoryView(
        trajectory_id=identity,
        running=identity in state.open,
        summary=state.trajectories.get(identity),
        steps=[
            view_step(before, observation, segments.get(observation.step - 1, ()), policy, pieces)
            for before, observation in zip([None, *observations], observations, strict=False)
        ],
        groups=[
            Membership(group_id, member, state.trained_with.get(group_id, []))
            for group_id in state.groups_of.get(identity, [])
            if (member := curated_member(group_id, identity, state)) is not None
        ],
        imitated_by=state.imitated_by.get(identity, []),
        feedback=[view_feedback(row, state, observations, policy) for row in rows_on(identity, state)],
    )


def view_feedback(
    row: FeedbackRow, state: RunState, observations: Sequence[Observation], policy: Policy
) -> GivenFeedback:
    """Return a feedback, with its points if it corrects a step whose screen is known."""
    action = state.feedback[row.id].action
    shot = next((one.screenshot for one in observations if one.step == row.step), None)
    return GivenFeedback(row, points_of(f"Action: {action}", shot, policy) if action and shot else ())


def view_step(
    before: Observation | None,
    observation: Observation,
    segments: Sequence[RequestSegment],
    policy: Policy,
    pieces: Pieces = MappingProxyType({}),
) -> StepView:
    """Return an observation with its tokens' texts, and its action's points on the screen ``before``."""
    shot, taken = before and before.screenshot, observation.taken
    points = points_of(taken.action, shot, policy) if shot and taken and taken.action else ()
    texts = token_texts(taken.tokens, pieces) if taken and pieces else ()
    screen = observation.screenshot
    image = image_of(screen, policy) if screen and screen.width and screen.height else None
    return StepView(event=observation, image=image, points=points, segments=segments, texts=texts)


def find_page(identity: str, state: RunState) -> dict[str, Any]:
    """Return the page of an id: ``page`` and its parameters. Raise :class:`NotFound` for an unknown id."""
    base, _, rest = identity.partition("/")
    if identity in state.trajectories or identity in state.open:
        return {"page": "trajectory", "id": identity}
    if rest and (base in state.trajectories or base in state.open):
        return {"page": "trajectory", "id": base, "step": rest.partition("/")[0]}
    if identity in state.groups or identity in state.orders_of:
        return {"page": "group", "id": identity}
    if identity in state.finished:
        return {"page": "trajectory", "id": state.finished[identity].trajectory_id}
    if identity.isdecimal() and int(identity) in state.trained:
        return {"page": "step", "id": identity}
    if identity[:1] == "v" and identity[1:].isdecimal():
        steps = [number for number, step in state.trained.items() if step.version == int(identity[1:])]
        if steps:
            return {"page": "step", "id": str(steps[0])}
    if identity in state.success_rates or any(one.task_id == identity for one in state.finished.values()):
        return {"page": "task", "id": identity}
    shots = [seen for sha, seen in state.screenshots.items() if len(identity) >= 8 and sha.startswith(identity)]
    if shots:
        return {"page": "trajectory", "id": shots[0][0][0], "step": str(shots[0][0][1])}
    raise NotFound(
        f"unknown id {identity!r}: give a trajectory, request (TRAJECTORY/STEP/ATTEMPT), order, group, task, "
        "optimizer step (12) or weight version (v12)"
    )
