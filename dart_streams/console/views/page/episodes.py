"""Trajectories for the page: the table of them, one step by step, and the prompt of a step. Pure."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dart_streams.config import Policy
from dart_streams.console.lineage.traces import RequestSegment
from dart_streams.console.runs.run_state import RunState
from dart_streams.console.views.page.source import NotFound
from dart_streams.console.views.pointers import Point, points_of
from dart_streams.episodes import prompts
from topics.curated import Member
from topics.observations import Observation
from topics.trajectories import Trajectory
from topics.values import MessagePart

FIELDS = ("task_id", "outcome", "purpose", "group_id")
"""By which the table can be filtered."""
PAGE = 100
"""Rows of the table at a time."""


class TrajectoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A finished trajectory in the table; ``groups`` are those it was curated into."""

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
    """Rows, the newest first; ``next`` is the cursor of those that follow, or null; ``total`` is without filter."""

    rows: list[TrajectoryRow]
    next: int | None
    total: int


def table(state: RunState, wanted: Mapping[str, str], cursor: int | None) -> TrajectoryPage:
    """Return the trajectories whose fields are as ``wanted`` (task_id, outcome, purpose, group_id), from a cursor on.

    A cursor counts trajectories from the oldest, so that new ones do not shift it.
    """
    total = len(state.trajectories)
    end = total if cursor is None else min(cursor, total)
    rows: list[TrajectoryRow] = []
    for number, trajectory in zip(
        range(end - 1, -1, -1),
        itertools.islice(reversed(state.trajectories.values()), total - end, None),
        strict=False,
    ):
        if is_wanted(trajectory, wanted):
            rows.append(row_of(trajectory, state))
            if len(rows) == PAGE:
                return TrajectoryPage(rows, number or None, total)
    return TrajectoryPage(rows, None, total)


def is_wanted(trajectory: Trajectory, wanted: Mapping[str, str]) -> bool:
    """Say whether a trajectory passes a filter: its fields are as ``wanted``, an empty text is any."""
    return all(str(getattr(trajectory, field)) == value for field, value in wanted.items() if value)


def row_of(trajectory: Trajectory, state: RunState) -> TrajectoryRow:
    """Return a trajectory's row."""
    return TrajectoryRow(
        trajectory_id=trajectory.trajectory_id,
        task_id=trajectory.task_id,
        group_id=trajectory.group_id,
        purpose=trajectory.purpose,
        outcome=trajectory.outcome,
        reward=trajectory.reward,
        steps=trajectory.steps,
        version_min=trajectory.version_min,
        version_max=trajectory.version_max,
        finished_ms=trajectory.finished_ms,
        wall_ms=trajectory.finished_ms - trajectory.started_ms,
        groups=state.groups_of.get(trajectory.trajectory_id, []),
    )


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory's part in a group: which of its actions are trained on, and in which optimizer steps."""

    group_id: str
    advantage: float
    source: str
    selected: list[int]
    train_steps: list[int]


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """An observation, where its action pointed to on the screen before it, and that action's traced segments."""

    event: Observation
    points: tuple[Point, ...] = ()
    segments: Sequence[RequestSegment] = ()


class TrajectoryView(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory, running or finished; ``summary`` is null until it has finished."""

    trajectory_id: str
    running: bool
    summary: Trajectory | None
    steps: list[StepView]
    groups: list[Membership]
    imitated_by: list[int]


def trajectory(
    identity: str,
    state: RunState,
    observations: Sequence[Observation],
    segments: Mapping[int, Sequence[RequestSegment]],
    policy: Policy,
) -> TrajectoryView:
    """Return a trajectory step by step; raise :class:`NotFound` if the run has none such.

    One that has just begun may have no step in the store yet.
    """
    if not observations and identity not in state.trajectories and identity not in state.open:
        raise NotFound(f"no trajectory {identity!r} in this run")
    return TrajectoryView(
        trajectory_id=identity,
        running=identity in state.open,
        summary=state.trajectories.get(identity),
        steps=[
            step_view(before, observation, segments.get(observation.step - 1, ()), policy)
            for before, observation in zip([None, *observations], observations, strict=False)
        ],
        groups=[membership(group_id, identity, state) for group_id in state.groups_of.get(identity, [])],
        imitated_by=state.imitated_by.get(identity, []),
    )


def step_view(
    before: Observation | None, observation: Observation, segments: Sequence[RequestSegment], policy: Policy
) -> StepView:
    """Return one observation, with its action drawn on the screen it was decided on."""
    shot, taken = before and before.screenshot, observation.taken
    points = points_of(taken.action, shot, policy) if shot and taken and taken.action else ()
    return StepView(event=observation, points=points, segments=segments)


def membership(group_id: str, identity: str, state: RunState) -> Membership:
    """Return a trajectory's part in a group."""
    group, _ = state.groups[group_id]
    member: Member = next(one for one in group.members if one.trajectory_id == identity)
    return Membership(
        group_id=group_id,
        advantage=member.advantage,
        source=member.source,
        selected=member.selected,
        train_steps=state.trained_with.get(group_id, []),
    )


def prompt(observations: Sequence[Observation], index: int, policy: Policy) -> list[MessagePart]:
    """Return the prompt of action ``index``; raise :class:`NotFound` if there is no such step."""
    if not 0 <= index < len(observations):
        raise NotFound(f"the trajectory has no step {index}")
    return prompts.prompt_turns(observations[: index + 1], policy)


def find(identity: str, state: RunState) -> dict[str, Any]:
    """Return which page knows an id: ``page`` and its parameters. Raise :class:`NotFound` if none does."""
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
        made = [number for number, step in state.trained.items() if step.version == int(identity[1:])]
        if made:
            return {"page": "step", "id": str(made[0])}
    if identity in state.success_rates or any(one.task_id == identity for one in state.finished.values()):
        return {"page": "task", "id": identity}
    shots = [seen for sha, seen in state.screenshots.items() if len(identity) >= 8 and sha.startswith(identity)]
    if shots:
        return {"page": "trajectory", "id": shots[0][0][0], "step": str(shots[0][0][1])}
    raise NotFound(
        f"nothing is called {identity!r}: give a trajectory, request (TRAJECTORY/STEP/ATTEMPT), order, group, task, "
        "optimizer step (12) or weight version (v12)"
    )
