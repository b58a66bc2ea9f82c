"""AdaPR of MobileRL (arXiv 2509.18119): adaptive positive replay beside each batch.

After each step the ``kappa`` successes of its batch with the largest advantage enter a buffer. A share ``gamma`` of the
trajectories of each step comes from the buffer, largest advantage first: q = gamma p_buffer + (1 - gamma) p_online.
"""

from collections.abc import Sequence

import msgspec

from dart_streams import stateless_random
from dart_streams.curation.hooks import Own
from topics.curated import CuratedGroup, Member
from topics.outcomes import is_success
from trainer.hooks import StepStart, TrainingRules

NOISE = 1e-9
"""Float noise of a sum of shares that must not delay a trajectory by a step."""


class ReplayBuffer(msgspec.Struct):
    """The newest successes that entered, oldest first; ``owed`` is a fraction of a trajectory still to replay."""

    members: list[Member] = []
    owed: float = 0.0


def owed_replays(own: Own, batch: Sequence[CuratedGroup]) -> float:
    """Return the replayed trajectories that make ``gamma`` of all, with what earlier steps have rounded off."""
    online = sum(bool(member.selected) for group in batch for member in group.members)
    gamma = own.settings.gamma
    return float(online * gamma / (1.0 - gamma) + own.memory.owed)


def replay(own: Own, batch: Sequence[CuratedGroup], step: StepStart) -> list[Member]:
    """Return the trajectories of the buffer with the largest advantages; a hash decides among equal ones."""
    count = int(owed_replays(own, batch) + NOISE)

    def key(member: Member) -> tuple[float, int]:
        return -member.advantage, stateless_random.number("replay", step.seed, step.train_step, member.trajectory_id)

    return sorted(own.memory.members, key=key)[:count]


def fill_buffer(own: Own, batch: Sequence[CuratedGroup]) -> None:
    """Put the best successes of a step's batch into the buffer; the oldest leave it."""
    memory: ReplayBuffer = own.memory
    owed = owed_replays(own, batch)
    memory.owed = owed - int(owed + NOISE)
    best = sorted(positive_members(batch), key=lambda member: (-member.advantage, member.trajectory_id))
    kept = [*memory.members, *best[: own.settings.kappa]]
    memory.members = kept[max(0, len(kept) - own.settings.buffer) :]


def positive_members(batch: Sequence[CuratedGroup]) -> list[Member]:
    """Return the policy's own successes with a positive advantage and steps to train on."""
    return [
        member
        for group in batch
        for member in group.members
        if member.source == "online" and is_success(member.reward) and member.advantage > 0 and member.selected
    ]


RULES = TrainingRules(replay=replay, remember=fill_buffer, memory=ReplayBuffer)
