"""Moves of topics to more or fewer brokers: the brokers of each copy of each partition, the pure part."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dart_streams.errors import UserError

OFFSETS_TOPIC = "__consumer_offsets"
"""Kafka's own topic of committed offsets, which has to have the same copies."""


class PlacedPartition(msgspec.Struct, frozen=True, order=True):
    """The brokers with a copy of a partition; the first one leads by preference."""

    topic: str
    partition: int
    brokers: tuple[int, ...]


def plan_moves(present: Iterable[PlacedPartition], brokers: Sequence[int], copies: int) -> list[PlacedPartition]:
    """Return the partitions that need another placement to have ``copies`` copies, each on the least used brokers.

    Copies that are there stay, as far as their brokers do. Raises :class:`UserError` for more copies than brokers.
    """
    if copies > len(brokers):
        raise UserError(
            f"bus.topics.replicas is {copies}, and there are {len(brokers)} brokers: start the others first"
        )
    present = sorted(present)
    load = Counter({broker: 0 for broker in brokers})
    load.update(broker for placement in present for broker in placement.brokers if broker in load)
    moves = []
    for placement in present:
        kept = [broker for broker in placement.brokers if broker in load][:copies]
        load.subtract(broker for broker in placement.brokers if broker in load and broker not in kept)
        while len(kept) < copies:
            chosen = min(
                (broker for broker in brokers if broker not in kept), key=lambda broker: (load[broker], broker)
            )
            kept.append(chosen)
            load[chosen] += 1
        if tuple(kept) != placement.brokers:
            moves.append(msgspec.structs.replace(placement, brokers=tuple(kept)))
    return moves


def list_lacking(wanted: Iterable[PlacedPartition], in_sync: Mapping[tuple[str, int], Sequence[int]]) -> list[str]:
    """Return the partitions of which a wanted broker has no complete copy yet."""
    return [
        f"{move.topic}[{move.partition}]"
        for move in wanted
        if not set(move.brokers) <= set(in_sync.get((move.topic, move.partition), ()))
    ]
