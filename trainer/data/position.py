"""Where the trainer stands in the ``curated`` log: a pure value that each checkpoint holds."""

import msgspec

REMEMBERED = 4096


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """``offsets`` has the next offset to take of each partition; later ones are pending, and still in the log.

    ``recent`` names the groups taken last: ``curated`` is delivered at least once, and a group is trained once.
    ``groups_consumed`` counts the different groups taken so far, those dropped included.
    """

    offsets: dict[int, int] = {}
    groups_consumed: int = 0
    recent: tuple[str, ...] = ()

    def contains(self, group_id: str) -> bool:
        """Return whether this group is among the last ``REMEMBERED`` that were taken."""
        return group_id in self.recent

    def after(self, partition: int, offset: int, group_id: str) -> "Position":
        """Return the position after taking the group at this place; a repeated one only moves the offset."""
        offsets = {**self.offsets, partition: max(offset + 1, self.offsets.get(partition, 0))}
        if self.contains(group_id):
            return msgspec.structs.replace(self, offsets=offsets)
        return Position(
            offsets=offsets,
            groups_consumed=self.groups_consumed + 1,
            recent=(*self.recent, group_id)[-REMEMBERED:],
        )
