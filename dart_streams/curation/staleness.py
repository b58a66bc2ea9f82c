"""Staleness, in weight versions, and how many groups may be in flight to bound it."""

from collections.abc import Sequence
from fractions import Fraction

from topics.curated import CuratedGroup

WINDOW = 64
"""Closed groups that say how many of the open ones will be curated: some twenty steps of the demonstration."""
LEAST_SHARE = Fraction(1, 4)
SHARES = [max(LEAST_SHARE, Fraction(number, WINDOW)) for number in range(WINDOW + 1)]
"""By how many of the window count as curated."""


def group_capacity(groups_per_step: int, max_staleness: int) -> int:
    """Return how many groups may be open or wait for the trainer, all together.

    The trainer takes ``G = groups_per_step`` groups a step, and each step makes one version, whatever it imitates too.
    Let the newest version be ``v``, ``O`` groups be open and ``U`` be curated but not counted in the version's
    ``groups_consumed`` (so those of the step under way are in ``U``). A group opened now is trained after at most
    ``O + U`` others, that is at the latest in step ``floor((O + U) / G)`` from now, where the step under way is step 0
    and starts from version ``v``. Its tokens come from version ``v`` or a later one, so it is then at most
    ``floor((O + U) / G)`` versions old, and ``O + U < (s + 1) * G`` keeps that at ``s``.

    The count ignores three things: a worker serves a new version a little after it was published; groups opened later
    may overtake a slow one; and dispatch may read a group's last finish before it reads that the group was curated. One
    version of the bound is reserved for them where possible: ``s = max_staleness - 1``, but at least 0, since with
    fewer than ``G`` groups the trainer would starve. Members that are older all the same are dropped when their group
    closes (:func:`is_stale`), and by the trainer when it takes the group.
    """
    return groups_per_step * max(1, max_staleness)


def admits(opened: int, unconsumed: int, share: Fraction, groups_per_step: int, max_staleness: int) -> bool:
    """Say whether one more group may be opened when ``opened`` are open and ``unconsumed`` wait for the trainer.

    A group without a learning signal takes no place in a step. So of the open groups, the new one included, only the
    ``share`` that is expected to be curated counts: with ``q`` of them, a group is trained after ``q * O + U`` others.
    """
    room = group_capacity(groups_per_step, max_staleness) - unconsumed
    return share.numerator * (opened + 1) <= share.denominator * room  # integers: dispatch asks at each of its inputs


def curated_share(curated: Sequence[bool]) -> Fraction:
    """Return the share of open groups that is expected to be curated, from whether each of the last closed ones was.

    Groups that are missing in the first :data:`WINDOW` count as curated, so a run begins with the bound for the worst
    case. A quarter at least: where hardly any group has a signal, a few more of them must not fill a step at once.
    """
    recent = curated[-WINDOW:]
    return SHARES[WINDOW - len(recent) + sum(recent)]


def is_stale(version_min: int | None, newest: int, max_staleness: int) -> bool:
    """Say whether a trajectory whose oldest token is of ``version_min`` is too old once ``newest`` is out."""
    return version_min is not None and newest - version_min > max_staleness


def group_staleness(group: CuratedGroup, version: int) -> int:
    """Return how many versions separate ``version``, about to be trained, from the oldest that acted in the group.

    Only online members count; members from the pool are stale by design. A group without any is not stale.
    """
    acted = [member.version_min for member in group.members if member.source == "online"]
    return max((version - oldest for oldest in acted if oldest is not None), default=0)
