"""feedback: what a person says of a trajectory, of one of its steps, or of a task."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from topics.topic import Topic
from topics.values import EpochMs, Excerpt, Name, Steps

MOST_CORRECTION = 2048
"""Characters of an action."""
Kind = Literal["judgement", "correction", "note"]
Judgement = Literal["good", "partial", "bad"]


class Feedback(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ``author`` said at ``at_ms``, under an id that is derived from all other fields.

    The subject is ``task_id``, a trajectory of it, or action ``step`` (from 0) of that trajectory. A ``judgement`` is
    of a whole trajectory. A ``correction`` has the ``action`` that should have been taken at ``step``, in the native
    grammar and in pixels of the policy's image. Any feedback may have a ``note``. Empty fields are omitted.
    """

    feedback_id: Name
    task_id: Name
    author: Name
    at_ms: EpochMs
    kind: Kind
    trajectory_id: Annotated[str, Meta(max_length=512)] = ""
    step: Steps | None = None
    judgement: Judgement | None = None
    action: Annotated[str, Meta(max_length=MOST_CORRECTION)] = ""
    note: Excerpt = ""


TOPIC = Topic(name="feedback", event=Feedback, key="task_id", shortest_ms=None)
