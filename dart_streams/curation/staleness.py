"""Staleness in weight versions, and the number of groups in flight that bounds it."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

from topics.curated import CuratedGroup

WINDOW = 64
"""Recent closed groups that estimate the share of curated ones: some twenty steps of the demonstration."""
LEAST_SHARE = Fraction(1, 4)
SHARES = [max(LEAST_SHARE, Fraction(number, WINDOW)) for number in range(WINDOW + 1)]
"""Expected share by the number of curated groups in the window."""


def group_capacity(groups_per_step: int, max_staleness: int) -> int:
    """Return the maximum number of groups that are open or wait for the trainer.

    The trainer takes ``G = groups_per_step`` groups a step, and each step makes one version. Let ``v`` be the newest
    version, ``O`` the open groups and ``U`` the curated groups not in its ``groups_consumed``. Those of the step under
    way are in ``U``. A group opened now is trained after at most ``O + U`` others, so at the latest in step ``floor((O
    + U) / G)`` from now; the step under way is step 0 and starts from ``v``. Its tokens come from ``v`` or later, so it
    is then at most ``floor((O + U) / G)`` versions old, and ``O + U < (s + 1) * G`` bounds that by ``s``.

    This ignores three delays: workers serve a version a little late, later groups may overtake a slow one, and dispatch
    may read a group's last finish before its curation. One version is reserved for them: ``s = max_staleness - 1``, at
    least 0, since fewer than ``G`` groups would starve the trainer. Older members are dropped when their group closes
    (:func:`is_stale`), and by the trainer.
    """
    return groups_per_step * max(1, max_staleness)


def admits(opened: int, unconsumed: int, share: Fraction, groups_per_step: int, max_staleness: int) -> bool:
    """Return whether another group may open when ``opened`` are open and ``unconsumed`` wait for the trainer.

    Groups without a learning signal take no place in a step, so only the expected ``share`` q of open groups counts,
    the new one included: a group is trained after ``q * O + U`` others.
    """
    room = group_capacity(groups_per_step, max_staleness) - unconsumed
    return share.numerator * (opened + 1) <= share.denominator * room  # integers: dispatch asks at each of its inputs


def curated_share(curated: Sequence[bool]) -> Fraction:
    """Return the expected share of curated groups, given whether each of the last closed groups was curated.

    Missing ones in the first :data:`WINDOW` count as curated, so a run begins with the worst case. The minimum is a
    quarter: where hardly any group has a signal, a few more must not fill a step at once.
    """
    recent = curated[-WINDOW:]
    return SHARES[WINDOW - len(recent) + sum(recent)]


class FollowsVersions(Protocol):
    """A state with the newest weight version of any trajectory, and one that is doubted."""

    newest_version: int
    doubted_version: int | None


def follow_version(state: FollowsVersions, version: int | None, max_staleness: int) -> bool:
    """Note a trajectory's newest version; return whether it can be one of this run.

    One that would make all others stale is doubted until a second trajectory has about the same: after a foreign record
    nothing would be trained on, and no version would follow.
    """
    if version is None:
        return True
    doubted, ahead = state.doubted_version, max(1, max_staleness)
    if version - state.newest_version > ahead and (doubted is None or abs(version - doubted) > ahead):
        state.doubted_version = version
        return False
    state.newest_version = max(state.newest_version, version)
    return True


def is_stale(version_min: int | None, newest: int, max_staleness: int) -> bool:
    """Return whether a trajectory with oldest token version ``version_min`` is too old for version ``newest``."""
    return version_min is not None and newest - version_min > max_staleness


def group_staleness(group: CuratedGroup, version: int) -> int:
    """Return the versions between ``version``, about to be trained, and the oldest in the group's online members.

    Pool members are stale by design and do not count.
    """
    acted = [member.version_min for member in group.members if member.source == "online"]
    return max((version - oldest for oldest in acted if oldest is not None), default=0)
