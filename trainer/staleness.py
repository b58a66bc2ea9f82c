"""How far behind the weights a group was generated: the age check at the moment of training. Pure."""

from topics.curated import CuratedGroup


def staleness(group: CuratedGroup, version: int) -> int:
    """Return how many versions separate ``version``, about to be trained, from the oldest that acted in the group.

    Only online members count; members from the pool are stale by design. A group without any is not stale.
    """
    acted = [member.version_min for member in group.members if member.source == "online"]
    return max((version - oldest for oldest in acted if oldest is not None), default=0)
