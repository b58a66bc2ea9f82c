"""Feedback that viewers with the write right give on the page: read, checked, and published on the topic."""

from typing import Annotated

import msgspec
from aiokafka.errors import KafkaError

from console.runs import feedback
from console.views.page.source import NotFound, RunSource
from dart_streams.clock import now_ms
from dart_streams.config.text import MALFORMED
from dart_streams.errors import ServiceUnavailable, UserError
from topics.feedback import MOST_CORRECTION, Feedback, SaidKind
from topics.trajectories import Trajectory
from topics.values import Excerpt, Name, Steps

MAX_BODY = 32 * 1024
"""Bytes of a request: a whole correction with its note, each character escaped."""


class SaidFeedback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a viewer says of an ended trajectory, or of action ``step`` (from 0); empty fields may be left out."""

    kind: SaidKind
    trajectory_id: Name
    author: Name
    step: Steps | None = None
    judgement: str = ""
    action: Annotated[str, msgspec.Meta(max_length=MOST_CORRECTION)] = ""
    note: Excerpt = ""


class FeedbackIntake:
    """Takes feedback on a run. ``author`` is the name that viewers are offered for theirs.

    Raises UserError for a bundle, and for a run that takes no feedback.
    """

    def __init__(self, source: RunSource, author: str) -> None:
        if source.kind == "bundle":
            raise UserError("a bundle takes no feedback: open its run while it goes on")
        feedback.refuse_disabled(source.config)
        self.source = source
        self.author = author

    async def take(self, body: bytes) -> Feedback:
        """Publish a feedback; return it once it is durable.

        Raises :class:`NotFound` for an unknown trajectory, :class:`ServiceUnavailable` if the broker does not answer,
        and another UserError for what can't be given.
        """
        try:
            said = msgspec.json.decode(body, type=SaidFeedback)
        except MALFORMED as error:
            raise UserError(f"this feedback can't be read: {error}") from None
        self.source.note_viewer()
        event = make_event(said, self.find(said.trajectory_id), now_ms())
        try:
            # It waits as long as the configuration says, not as briefly as views: a busy machine loses no one's words.
            await feedback.publish(self.source.config, [event])
        except KafkaError as error:
            raise ServiceUnavailable(f"the broker did not take the feedback: {error}; it may be given again") from None
        return event

    def find(self, trajectory_id: str) -> Trajectory:
        """Return an ended trajectory; raise UserError for one under way, and :class:`NotFound` for an unknown one."""
        state = self.source.state
        if trajectory_id in state.trajectories:
            return state.trajectories[trajectory_id]
        if trajectory_id in state.open:
            raise UserError("this episode is under way: it can be given feedback once it has ended")
        raise NotFound(f"no trajectory {trajectory_id!r} has ended in this run")


def make_event(said: SaidFeedback, trajectory: Trajectory, at_ms: int) -> Feedback:
    """Return what was said as an event; raise UserError for what can't be given."""
    if said.kind == "judgement":
        return feedback.make_judgement(trajectory, said.judgement, said.author, at_ms, said.note)
    if said.kind == "note":
        return feedback.make_note(trajectory, said.note, said.author, at_ms, said.step)
    if said.step is None:
        raise UserError("a correction needs the step that it corrects")
    return feedback.make_correction(trajectory, said.step, said.action, said.author, at_ms, said.note)
