"""task-verdicts: whether a proposed task was accepted, and why not."""

import msgspec

from topics.topic import Topic
from topics.values import Name, NoName, Prose, Steps


class TaskVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a proposed task.

    ``accepted`` if the start of its check was worth 0 and the end of its solution 1; ``reason`` says why it was not.
    ``max_steps`` and ``maker`` are those of the proposal. ``trajectory_id`` names the check, empty without one.
    """

    task_id: Name
    accepted: bool
    reason: Prose
    max_steps: Steps
    maker: Name
    trajectory_id: NoName


TOPIC = Topic(name="task-verdicts", event=TaskVerdict, key="task_id", shortest_ms=None)
