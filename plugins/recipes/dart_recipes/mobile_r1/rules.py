"""Mobile-R1 (arXiv 2506.20332): first single actions with a verifiable reward, then whole tasks."""

import msgspec

from dart_recipes.recordings import Recordings, note_recording
from dart_streams import stateless_random
from dart_streams.config.section import Count, Optional
from dart_streams.curation.hooks import Own, Rules
from dart_streams.curation.order_tracker import parse_order_id
from topics.rollout_orders import Guide, RolloutOrder
from topics.values import Pixels


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.mobile-r1]``."""

    action_groups: Count = 200
    """Groups of the action-level stage; all later ones are of the task-level stage."""
    bound: Pixels = 10
    """Half the side of the box around a recorded place, in pixels of the policy's image."""


def tasks_of_stage(own: Own, group: int, limits: dict[str, int], task_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tasks that group number ``group`` may have: in the action-level stage those with a recording."""
    recorded = own.memory.trajectories
    if group >= own.settings.action_groups:
        return task_ids
    return tuple(task_id for task_id in task_ids if task_id in recorded) or task_ids


def order_of_stage(own: Own, order: RolloutOrder) -> RolloutOrder:
    """Return the order of its stage: in the first, a recorded prefix and a single action of the policy.

    All rollouts of a group have the same prefix. Its length is drawn evenly over the recorded actions. A task without a
    recording is always ordered whole.
    """
    key, source = parse_order_id(order.order_id), own.memory.trajectories.get(order.task_id)
    if key is None or key.number >= own.settings.action_groups or source is None:
        return order
    share = stateless_random.share("prefix", order.group_id, order.task_id)
    guide = Guide(trajectory_id=source, mode="prefix", share=share, single=True, bound=own.settings.bound)
    return msgspec.structs.replace(order, guide=guide)


RULES = Rules(
    eligible_tasks=tasks_of_stage, order=order_of_stage, remember=note_recording, demonstrations=True, memory=Recordings
)
