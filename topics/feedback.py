"""feedback: what a person says of a trajectory, of one of its steps, or of a task; and that they take one over."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from topics.rollout_orders import PersonLease
from topics.topic import Topic
from topics.values import EpochMs, Excerpt, Name, NoName, Steps

MOST_CORRECTION = 2048
"""Characters of an action."""
Kind = Literal["judgement", "correction", "note", "take-over"]
SaidKind = Literal["judgement", "correction", "note"]
"""Kinds of what is said of a trajectory once it has ended."""
Judgement = Literal["good", "partial", "bad"]


class Feedback(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ``author`` said at ``at_ms``, under an id that is derived from all other fields.

    The subject is ``task_id``, a trajectory of it, or action ``step`` (from 0) of that trajectory. A ``judgement`` is
    of a whole trajectory. A ``correction`` has the ``action`` that should have been taken at ``step``, in the native
    grammar and in pixels of the policy's image. Any feedback may have a ``note``. Empty fields are omitted.

    A ``take-over`` asks for the trajectory while it runs: from its next step on, the person of the ``lease`` acts in
    place of the policy. The environment worker says so in ``Observation.asks``. Then the person sends each action under
    the id ``<trajectory>/<step>/person``, as in a demonstration. The first take-over holds until its person gives the
    trajectory back, or has shown no sign of life for the time of the lease. Others are ignored meanwhile. But
    if the same person has asked again, the trajectory is theirs again after the policy's next step.
    """

    feedback_id: Name
    task_id: Name
    author: Name
    at_ms: EpochMs
    kind: Kind
    trajectory_id: NoName = ""
    step: Steps | None = None
    judgement: Judgement | None = None
    action: Annotated[str, Meta(max_length=MOST_CORRECTION)] = ""
    note: Excerpt = ""
    lease: PersonLease | None = None


TOPIC = Topic(name="feedback", event=Feedback, key="task_id", shortest_ms=None)
