"""What a recipe remembers in dispatch to order recorded actions: a success of each task. Pure.

Dispatch reads no trajectories, but each finish's budget names the trajectory behind it, demonstrations included. So an
order names the recording, and the environment worker reads its steps from the store.
"""

import msgspec

from dart_streams.curation.hooks import DemonstrationFinish, Own, TaskFinish


class Recordings(msgspec.Struct):
    """The trajectory of a success by task: the first demonstration or unguided rollout, kept for good.

    So all orders of a group, repeated ones too, have the same recording.
    """

    trajectories: dict[str, str] = {}


def note_recording(own: Own, event: object) -> None:
    """Remember the first success of a task; one of a guided rollout has steps that are not the policy's."""
    if isinstance(event, DemonstrationFinish) or (isinstance(event, TaskFinish) and event.success and not event.guided):
        own.memory.trajectories.setdefault(event.task_id, event.trajectory_id)
