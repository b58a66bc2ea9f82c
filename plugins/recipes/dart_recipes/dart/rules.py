"""What the paper has beyond the core's rules: a stored success of the policy counts as an online one."""

import msgspec

from dart_streams.config.section import Optional
from dart_streams.curation.hooks import Own, Rules
from dart_streams.curation.members import PooledSuccess
from topics.trajectories import Trajectory


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.dart]``."""

    as_online: bool = True
    """Treat the policy's own stored success as an online one: entropies select its steps, and the trainer's correction
    weighs them. Otherwise it keeps all steps at weight 1, as demonstrations always do."""


def keep_own(own: Own, trajectory: Trajectory, success: PooledSuccess) -> PooledSuccess:
    """Return a success that the policy took itself with its entropies; a demonstration as it is."""
    if not own.settings.as_online or trajectory.purpose != "train":
        return success
    known = len(trajectory.step_entropies) == trajectory.steps
    entropies = trajectory.step_entropies if known else []
    return msgspec.structs.replace(success, as_online=True, step_entropies=entropies)


RULES = Rules(pooled=keep_own)
