"""Feedback of people: made, checked, published, and what became of each."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from console.runs.run_state import RunState
from dart_streams.actions import Unparsable, call
from dart_streams.actions.sequence import parse_written
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.errors import UserError
from topics import feedback
from topics.feedback import Feedback
from topics.trajectories import Trajectory

Fate = Literal["kept", "curated", "trained"]


class Subject(NamedTuple):
    """What a feedback is about, while no trajectory has been announced."""

    task_id: str
    trajectory_id: str


class FeedbackRow(msgspec.Struct, frozen=True):
    """A feedback and what became of it.

    ``kept`` feedback trains nothing, or nothing yet. Once a group is ``curated`` of it, the trainer takes that with its
    next step: ``train_step`` is the first that learned from it, and made ``version``.
    """

    id: str
    at_ms: int
    author: str
    kind: str
    task: str
    trajectory: str
    step: int | None
    said: str
    state: Fate
    train_step: int | None
    version: int | None


def refuse_disabled(config: Config) -> None:
    """Raise UserError if a run does not train on feedback."""
    if not config.feedback.enabled:
        raise UserError(f"{config.bus.prefix}* takes no feedback: set feedback.enabled = true before its start")


def find_trajectory(trajectories: Iterable[Trajectory], name: str) -> Trajectory:
    """Return the trajectory whose id is ``name`` or begins with it; raise UserError if none or several do."""
    found = {item.trajectory_id: item for item in trajectories if name and item.trajectory_id.startswith(name)}
    if name in found:
        return found[name]
    if len(found) != 1:
        what = f"{len(found)} trajectories begin" if found else "no ended trajectory begins"
        raise UserError(f"{what} with {name!r}: give the whole id, which the page shows beside the episode")
    return next(iter(found.values()))


def make_feedback(trajectory: Trajectory | Subject, author: str, at_ms: int, **said: Any) -> Feedback:
    """Return a feedback on a trajectory, said at ``at_ms`` (epoch milliseconds), under the id of all that it says.

    Raises UserError for a value outside of the topic's bounds.
    """
    said |= {"task_id": trajectory.task_id, "trajectory_id": trajectory.trajectory_id}
    digest = hashlib.sha256(msgspec.json.encode({"author": author, "at_ms": at_ms, **said}, order="sorted"))
    fields = {"feedback_id": digest.hexdigest()[:32], "author": author, "at_ms": at_ms, **said}
    try:
        return msgspec.convert(fields, Feedback)
    except msgspec.ValidationError as error:
        raise UserError(f"this feedback can't be given: {error}") from None


def make_correction(trajectory: Trajectory, step: int, action: str, author: str, at_ms: int, note: str) -> Feedback:
    """Return a correction of action ``step`` (from 0); raise UserError for a step or an action that is none."""
    if not 0 <= step < trajectory.steps:
        raise UserError(f"trajectory {trajectory.trajectory_id} has {trajectory.steps} actions: 0 is the first")
    refuse_untrained(trajectory)
    try:
        canonical = call(parse_written(action))
    except Unparsable as error:
        raise UserError(f"{action!r} is no action: {error}. Write it as click(start_box='(84,120)')") from None
    return make_feedback(trajectory, author, at_ms, kind="correction", step=step, action=canonical, note=note)


def make_judgement(trajectory: Trajectory, judgement: str, author: str, at_ms: int, note: str) -> Feedback:
    """Return a judgement of a trajectory: good, partial or bad; raise UserError for any other."""
    refuse_untrained(trajectory)
    return make_feedback(trajectory, author, at_ms, kind="judgement", judgement=judgement, note=note)


def make_note(trajectory: Trajectory, text: str, author: str, at_ms: int, step: int | None = None) -> Feedback:
    """Return a note on a trajectory, or on one of its steps; raise UserError for an empty or overlong text."""
    if not text:
        raise UserError("a note needs a text")
    return make_feedback(trajectory, author, at_ms, kind="note", step=step, note=text)


def refuse_untrained(trajectory: Trajectory) -> None:
    """Raise UserError for a trajectory that training must not see, or that no policy has played."""
    if trajectory.purpose != "train":
        raise UserError(
            f"trajectory {trajectory.trajectory_id} has the purpose {trajectory.purpose}, and only training rollouts "
            "are trained on: give it a note"
        )


async def publish(config: Config, given: Sequence[Feedback]) -> None:
    """Publish feedback; raise ServiceUnavailable."""
    async with Publisher(config.bus, "feedback") as publisher:
        for event in given:
            await publisher.publish(feedback.TOPIC, event, record_id=event.feedback_id)


def feedback_rows(state: RunState) -> list[FeedbackRow]:
    """Return each feedback of a run, in the log's order."""
    return [row_of(event, state) for event in state.feedback.values()]


def rows_on(trajectory_id: str, state: RunState) -> list[FeedbackRow]:
    """Return each feedback on a trajectory, in the log's order."""
    return [row_of(state.feedback[name], state) for name in state.feedback_on.get(trajectory_id, ())]


def row_of(event: Feedback, state: RunState) -> FeedbackRow:
    """Return a feedback with what became of it."""
    of_trajectory = state.groups_of.get(event.trajectory_id, ())
    group_id = next((name for name in of_trajectory if event.feedback_id in state.groups[name][0].feedback), None)
    steps = state.trained_with.get(group_id, []) if group_id else []
    first = state.trained[min(steps)] if steps else None
    fate: Fate = "trained" if first else "curated" if group_id else "kept"
    return FeedbackRow(
        id=event.feedback_id,
        at_ms=event.at_ms,
        author=event.author,
        kind=event.kind,
        task=event.task_id,
        trajectory=event.trajectory_id,
        step=event.step,
        said=": ".join(part for part in (event.judgement or event.action, event.note) if part),
        state=fate,
        train_step=first.train_step if first else None,
        version=first.version if first else None,
    )
