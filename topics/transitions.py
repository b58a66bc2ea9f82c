"""What may follow what in the life of an order, a trajectory and a weight version: each rule once, for every process.

Pure. Every process that folds these topics uses these rules, so all of them derive the same state from the same log.
"""

from typing import Literal, TypeVar

import msgspec

from topics.values import OutcomeKind
from topics.weights import WeightVersion

REWARDED: frozenset[OutcomeKind] = frozenset({"success", "failure", "truncated", "invalid_action"})
"""The outcomes that carry a reward. A fault of the infrastructure never does."""
FAULTS: frozenset[OutcomeKind] = frozenset({"env_error", "policy_error", "lost"})
"""The outcomes after which an order is placed again, up to the limit of attempts."""

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
"""The life of one sample of a group. A fault is ordered again with the next attempt number until the limit exhausts it;
a cancelled rollout with the same number, when the broker delivers its order again. Only a reward is ever curated."""

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
"""The life of one weight version at one rollout worker: published is not served, and a failed load is tried again."""

Stage = TypeVar("Stage", OrderStage, WeightStage)


class IllegalTransition(Exception):
    """A stage that cannot follow the one before."""


def advance_stage(table: dict[Stage, frozenset[Stage]], before: Stage, after: Stage) -> Stage:
    """Return ``after``; raise :class:`IllegalTransition` if ``table`` does not have it follow ``before``."""
    if after not in table[before]:
        raise IllegalTransition(f"{after} cannot follow {before}, only {', '.join(sorted(table[before])) or 'nothing'}")
    return after


def outcome_stage(outcome: OutcomeKind) -> OrderStage:
    """Return the stage that a rollout reaches with ``outcome``."""
    if outcome in REWARDED:
        return "rewarded"
    return "faulted" if outcome in FAULTS else "cancelled"


def next_attempt(outcome: OutcomeKind, attempt: int, attempts: int) -> int | None:
    """Return the attempt at which an order is placed again that ended with ``outcome`` at ``attempt`` (from 0).

    None if it is not placed again: no fault, or the last of ``attempts`` in all.
    """
    return attempt + 1 if outcome in FAULTS and attempt + 1 < attempts else None


MOST_AHEAD = 10_000_000
"""How far an epoch or a version may be beyond the newest seen. Trainers count them one by one; a record that is farther
ahead is of no trainer, and would rule the topic for ever."""


def is_fenced(epoch: int, newest_epoch: int) -> bool:
    """Say whether a trainer of ``epoch`` has no say any more: one of a newer epoch has written to the same topic.

    A trainer that was taken over may write once more before it learns of that: nobody reads it.
    """
    return epoch < newest_epoch


def is_foreign(number: int, newest: int) -> bool:
    """Say whether an epoch or a version is of no trainer, by the ``newest`` seen (-1 before the first)."""
    return number - newest > MOST_AHEAD


def is_ignored(epoch: int, newest_epoch: int) -> bool:
    """Say whether a record of ``epoch`` is of a fenced trainer or of none."""
    return is_fenced(epoch, newest_epoch) or is_foreign(epoch, newest_epoch)


Announcement = Literal["fenced", "foreign", "outdated", "repeated", "published"]
"""How a weights record relates to the newest epoch and version seen: of a fenced trainer; of no trainer; of an older
version; the newest version again, with more groups consumed or by a trainer that took over; a new version."""
IGNORED: frozenset[Announcement] = frozenset({"fenced", "foreign"})
"""What changes nothing."""


def classify_announcement(epoch: int, version: int, announced: WeightVersion) -> Announcement:
    """Return what ``announced`` is after the newest ``epoch`` and ``version`` seen (-1 before the first).

    All but those :data:`IGNORED` raise the epoch, also those that bring no newer version.
    """
    if is_fenced(announced.epoch, epoch):
        return "fenced"
    if is_foreign(announced.epoch, epoch) or is_foreign(announced.version, version):
        return "foreign"
    if announced.version < version:
        return "outdated"
    return "repeated" if announced.version == version else "published"


class WeightState(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one model on ``weights``, folded: the newest epoch, and the newest version as last announced."""

    model_id: str
    epoch: int = -1
    newest: WeightVersion | None = None

    @property
    def version(self) -> int:
        """The newest version, -1 before the first."""
        return -1 if self.newest is None else self.newest.version

    def admits(self, announced: WeightVersion) -> bool:
        """Say whether a record is of this model, and neither of a fenced trainer nor of none."""
        return (
            announced.model_id == self.model_id
            and classify_announcement(self.epoch, self.version, announced) not in IGNORED
        )

    def accept(self, announced: WeightVersion) -> "WeightState":
        """Return the state after one more record; one that is not admitted changes nothing."""
        if not self.admits(announced):
            return self
        outdated = classify_announcement(self.epoch, self.version, announced) == "outdated"
        newest = self.newest if outdated else announced
        return WeightState(model_id=self.model_id, epoch=announced.epoch, newest=newest)
