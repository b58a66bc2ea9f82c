"""Which members of groups each rank trains: balanced over an optimizer step, and the same on every rank. Pure."""

from collections.abc import Sequence

from topics.curated import CuratedGroup, Member


def share(groups: Sequence[CuratedGroup], rank: int, loads: list[int]) -> list[list[Member]]:
    """Return the members of each group that a rank trains, and add the steps of all members to the ranks' ``loads``.

    The longest comes first, and goes to the rank with the least load.
    """
    mine: list[list[Member]] = [[] for _ in groups]
    members = [(member, of) for of, group in enumerate(groups) for member in group.members]
    for member, of in sorted(members, key=lambda one: (-len(one[0].selected), one[0].trajectory_id, one[1])):
        lightest = min(range(len(loads)), key=loads.__getitem__)
        loads[lightest] += len(member.selected)
        if lightest == rank:
            mine[of].append(member)
    return mine


class StepShares:
    """Shares of the groups that arrive, of which each ``size`` make a step.

    All ranks ask for the same groups in the same order. Groups asked for together are balanced as one, but for those
    of another step.
    """

    def __init__(self, rank: int, ranks: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._loads = [0] * ranks
        """Of the step that the next group belongs to."""
        self._planned = 0
        """Groups of that step so far."""

    def plan(self, groups: Sequence[CuratedGroup]) -> list[list[Member]]:
        """Return the members of each group that this rank trains."""
        mine: list[list[Member]] = []
        while len(mine) < len(groups):
            of_step = groups[len(mine) : len(mine) + self.size - self._planned]
            mine += share(of_step, self.rank, self._loads)
            self._planned += len(of_step)
            if self._planned == self.size:
                self._planned, self._loads = 0, [0] * len(self._loads)
        return mine

    def leave_out(self, count: int) -> None:
        """Note planned groups that take no place in a step: the next step begins as many groups later."""
        self._planned = (self._planned - count) % self.size
