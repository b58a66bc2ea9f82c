"""Legal transitions of orders, trajectories and weight versions. Pure.

Every process that folds these topics uses these rules, so all derive the same state from the same log.
"""

from typing import Literal, TypeVar

import msgspec

from topics.values import OutcomeKind
from topics.weights import WeightVersion

REWARDED: frozenset[OutcomeKind] = frozenset({"success", "failure", "truncated", "invalid_action"})
"""Outcomes with a reward. Faults of the infrastructure have none."""
FAULTS: frozenset[OutcomeKind] = frozenset({"env_error", "policy_error", "lost"})
"""Outcomes after which an order is placed again, up to the limit of attempts."""

OrderStage = Literal[
    "ordered", "running", "rewarded", "faulted", "cancelled", "exhausted", "curated", "dropped", "trained"
]
ORDER: dict[OrderStage, frozenset[OrderStage]] = {
    "ordered": frozenset({"running"}),
    "running": frozenset({"rewarded", "faulted", "cancelled"}),
    "rewarded": frozenset({"curated", "dropped"}),
    "faulted": frozenset({"ordered", "exhausted"}),
    "cancelled": frozenset({"ordered"}),
    "exhausted": frozenset(),
    "curated": frozenset({"trained", "dropped"}),
    "dropped": frozenset(),
    "trained": frozenset(),
}
"""The life of one sample of a group. A fault is ordered again with the next attempt number, up to the limit.

A cancelled rollout keeps its number: the broker delivers its order again. Only rewarded rollouts are curated."""

WeightStage = Literal["announced", "published", "fenced", "foreign", "outdated", "served", "failed", "superseded"]
WEIGHTS: dict[WeightStage, frozenset[WeightStage]] = {
    "announced": frozenset({"published", "fenced", "foreign", "outdated"}),
    "published": frozenset({"served", "failed", "superseded"}),
    "failed": frozenset({"served", "superseded"}),
    "served": frozenset({"superseded"}),
    "fenced": frozenset(),
    "foreign": frozenset(),
    "outdated": frozenset(),
    "superseded": frozenset(),
}
"""The life of a weight version at a rollout worker; a failed load is retried."""

Stage = TypeVar("Stage", OrderStage, WeightStage)


class IllegalTransition(Exception):
    """A stage that may not follow the one before."""


def advance_stage(table: dict[Stage, frozenset[Stage]], before: Stage, after: Stage) -> Stage:
    """Return ``after``; raise :class:`IllegalTransition` if it may not follow ``before`` in ``table``."""
    if after not in table[before]:
        raise IllegalTransition(f"{after} cannot follow {before}, only {', '.join(sorted(table[before])) or 'nothing'}")
    return after


def outcome_stage(outcome: OutcomeKind) -> OrderStage:
    """Return the stage of a rollout with ``outcome``."""
    if outcome in REWARDED:
        return "rewarded"
    return "faulted" if outcome in FAULTS else "cancelled"


def next_attempt(outcome: OutcomeKind, attempt: int, attempts: int) -> int | None:
    """Return the next attempt of an order that ended with ``outcome`` at ``attempt`` (from 0) of ``attempts``.

    None without a fault, or after the last attempt.
    """
    return attempt + 1 if outcome in FAULTS and attempt + 1 < attempts else None


MOST_AHEAD = 10_000_000
"""Maximum distance of an epoch or a version from the newest seen. Trainers count by one; a garbage record farther ahead
would fence every trainer forever."""


def is_fenced(epoch: int, newest_epoch: int) -> bool:
    """Return whether a trainer of ``epoch`` is fenced: a newer epoch has written to the same topic.

    A fenced trainer may write once more before it learns of its successor; readers ignore that.
    """
    return epoch < newest_epoch


def is_foreign(number: int, newest: int) -> bool:
    """Return whether an epoch or a version comes from no trainer, given the ``newest`` seen (-1 before the first)."""
    return number - newest > MOST_AHEAD


def is_ignored(epoch: int, newest_epoch: int) -> bool:
    """Return whether a record of ``epoch`` comes from a fenced trainer or from none."""
    return is_fenced(epoch, newest_epoch) or is_foreign(epoch, newest_epoch)


Announcement = Literal["fenced", "foreign", "outdated", "repeated", "published"]
"""The relation of a weights record to the newest epoch and version: from a fenced trainer; from no trainer; an older
version; the newest version again, with more groups consumed or from a new trainer; a new version."""
IGNORED: frozenset[Announcement] = frozenset({"fenced", "foreign"})
"""Announcements without effect."""


def classify_announcement(epoch: int, version: int, announced: WeightVersion) -> Announcement:
    """Return the kind of ``announced`` after the newest ``epoch`` and ``version`` seen (-1 before the first).

    All kinds but :data:`IGNORED` raise the epoch, even without a newer version.
    """
    if is_fenced(announced.epoch, epoch):
        return "fenced"
    if is_foreign(announced.epoch, epoch) or is_foreign(announced.version, version):
        return "foreign"
    if announced.version < version:
        return "outdated"
    return "repeated" if announced.version == version else "published"


class WeightState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a model's records on ``weights``: the newest epoch, and the newest version as last announced."""

    model_id: str
    epoch: int = -1
    newest: WeightVersion | None = None

    @property
    def version(self) -> int:
        """The newest version, -1 before the first."""
        return -1 if self.newest is None else self.newest.version

    def admits(self, announced: WeightVersion) -> bool:
        """Return whether a record is of this model, and of a trainer that is not fenced."""
        return (
            announced.model_id == self.model_id
            and classify_announcement(self.epoch, self.version, announced) not in IGNORED
        )

    def accept(self, announced: WeightVersion) -> "WeightState":
        """Return the state after a record; a record that is not admitted has no effect."""
        if not self.admits(announced):
            return self
        outdated = classify_announcement(self.epoch, self.version, announced) == "outdated"
        newest = self.newest if outdated else announced
        return WeightState(model_id=self.model_id, epoch=announced.epoch, newest=newest)
