"""What the ``weights`` topic says of one model: which trainer incarnation rules, and the newest version. Pure."""

from collections.abc import Iterable

import msgspec

from topics.weights import WeightVersion


class WeightLineage(msgspec.Struct, frozen=True, kw_only=True):
    """The accepted records of one model, folded: an older epoch than the newest seen is from a fenced trainer."""

    model_id: str
    epoch: int = 0
    newest: WeightVersion | None = None
    uris: tuple[str, ...] = ()

    def after(self, announced: WeightVersion) -> "WeightLineage":
        """Return the lineage after one more record. ``uris`` lists where versions lie, the oldest first."""
        if announced.model_id != self.model_id or announced.epoch < self.epoch:
            return self
        newer = self.newest is None or announced.version >= self.newest.version
        uris = self.uris if announced.uri in self.uris else (*self.uris, announced.uri)
        return WeightLineage(
            model_id=self.model_id,
            epoch=announced.epoch,
            newest=announced if newer else self.newest,
            uris=uris,
        )

    def after_all(self, records: Iterable[WeightVersion]) -> "WeightLineage":
        """Return the lineage after all ``records``, in the log's order."""
        result = self
        for record in records:
            result = result.after(record)
        return result


def first_version(restored: int | None, newest: WeightVersion | None, same: bool) -> int:
    """Return the version under which an incarnation announces the weights it starts from.

    Parameters
    ----------
    restored
        The version of the checkpoint it goes on from; None if it starts from the initial weights.
    newest
        The newest version announced before it, if any.
    same
        Whether its weights are those of ``newest``.

    Returns
    -------
    version
        That of ``newest`` for the same weights. That of the checkpoint if the trainer before died between checkpoint
        and announcement. Otherwise the next free number: a number never means two sets of weights.
    """
    if newest is None:
        return restored or 0
    if same:
        return newest.version
    if restored is not None and restored > newest.version:
        return restored
    return newest.version + 1
