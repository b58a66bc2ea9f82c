"""Ownership of a partition's journal: only the curator with the latest claim may write.

Two curators may both believe that they own a partition: one that was frozen wakes up, and neither Faust nor static
group membership stops it. The order of the changelog decides, without a lock:

1. A new owner writes a claim with a higher incarnation, reads everything before it, and continues from there.
2. An owner writes under keys of its incarnation, one record at a time. The returned offset shows whether another
   writer interfered; only then is the changelog read.
3. A record counts if no newer claim precedes it. Its writer checks that before it publishes, and the new owner has
   read it. A writer that finds a newer claim publishes nothing, and :class:`OwnershipLost` ends its process.
4. A partition returned by a rebalance is claimed again. If a process of the same id claimed it in between,
   :class:`Replaced` ends this one. The group does not fence it: aiokafka's heartbeats omit the static member's id.

So at most one record of a former owner follows the claim, without effects. Kafka's transactions would fence it too, but
cost three more requests a batch, and Faust's recovery waits in vain for their markers.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog
from aiokafka import ConsumerRecord, TopicPartition

from dart_streams.bus.clients import read_alone, read_to_end
from dart_streams.config import Bus
from dart_streams.curation.changelog import ChangelogView, Value, claim_key
from dart_streams.curation.journal import Claim, encode
from dart_streams.errors import UserError

READ_TIMEOUT_S = 60.0

ReadFrom = Callable[[str, int, int, int | None], Awaitable[list[ConsumerRecord]]]
"""Returns a partition's records from an offset to before another, or to the present end."""

log = structlog.get_logger()


class OwnershipLost(UserError):
    """Another curator has claimed a partition; the supervisor restarts this one."""

    exit_code = 1


class Replaced(OwnershipLost):
    """The claiming curator has the same id: it was started as a replacement."""


class Changelog:
    """The changelog of an agent's table: known records by partition, and appends.

    Records read by Faust's recovery are noted with their offset. The table's dictionary is not used: a recovery beside
    a write would put older values over newer ones, and may skip records.
    """

    def __init__(self, name: str, owner: str, read_from: ReadFrom) -> None:
        self.name = name
        self.owner = owner
        self.read_from = read_from
        self.table: Any = None
        self.views: dict[int, ChangelogView] = defaultdict(ChangelogView)
        self.recovered = 0
        """Number of records read by Faust's recoveries."""
        self.claims: dict[int, int] = {}
        """Newest incarnation claimed by this process, by partition."""

    async def note_recovered(self, event: Any) -> None:
        """Note a record read by Faust's recovery; :meth:`write` reads skipped ones."""
        message = event.message
        self.recovered += 1
        if message.topic == self.name:
            self.views[message.partition].note(message.offset, message.key, message.value)

    async def write(self, partition: int, key: bytes, value: Value) -> int:
        """Write a record; return its offset once it is durable and everything before it is known.

        Raises OwnershipLost if the topic was recreated.
        """
        view = self.views[partition]
        # Faust sets the result of a cancelled write too, which would be logged as an error.
        offset: int = (await asyncio.shield(self.table.send_changelog(partition, key, value))).offset
        if offset > view.position:
            await self.read_on(partition)
        elif offset < view.position and not view.has(offset, key, value):
            raise OwnershipLost(f"{self.name}[{partition}] was deleted and made again while this curator wrote to it")
        view.note(offset, key, value)
        return offset

    async def read_on(self, partition: int) -> None:
        """Note the records after the known position."""
        view = self.views[partition]
        for record in await self.read_from(self.name, partition, view.position, None):
            view.note_read(record.offset, record.key, record.value)

    async def refuse_replaced(self, partition: int) -> None:
        """Raise Replaced if a process of the same id has claimed the partition after this one."""
        if partition in self.claims:
            await self.read_on(partition)
            JournalWriter(self, partition, self.claims[partition]).check(others=False)

    async def claim(self, partition: int) -> "JournalWriter":
        """Claim a partition; return once every record that a former owner acted on is known.

        Raises OwnershipLost if another curator claims it meanwhile.
        """
        await self.refuse_replaced(partition)
        view = self.views[partition]
        while True:
            writer = JournalWriter(self, partition, view.next_incarnation())
            self.claims[partition] = writer.incarnation
            key = claim_key(partition, writer.incarnation)
            offset = await self.write(partition, key, encode(Claim(self.owner)))
            if view.claimed_at >= offset:
                writer.check()
                return writer


class JournalWriter:
    """Writes the journal of one partition as its owner ``incarnation``."""

    def __init__(self, changelog: Changelog, partition: int, incarnation: int) -> None:
        self.changelog = changelog
        self.partition = partition
        self.incarnation = incarnation
        self.view = changelog.views[partition]

    async def write(self, key: bytes, value: Value) -> None:
        """Write a record; return once it counts. Raises OwnershipLost if it does not, or the next one would not."""
        await self.changelog.write(self.partition, key, value)
        self.check()

    def check(self, *, others: bool = True) -> None:
        """Raise OwnershipLost if another curator has claimed the partition, Replaced if it has the same id.

        Without ``others`` only the latter.
        """
        if self.view.claimed <= self.incarnation:
            return
        claims = self.view.claims_after(self.incarnation)
        owners = [msgspec.msgpack.decode(claim, type=Claim).owner for claim in claims]
        replaced = self.changelog.owner in owners
        owner = self.changelog.owner if replaced else owners[-1] if owners else "its name is lost"
        reason = (
            f"{self.changelog.name}[{self.partition}] belongs to another curator process now ({owner}), which claimed "
            "it while this one was paused or disconnected: decisions of this one since then were not published"
        )
        if replaced:
            advice = "only one may run; give each further curator another id (--id)"
            raise Replaced(f"{reason}. It has the same id: {advice}")
        if others:
            raise OwnershipLost(reason)


async def read_from(bus: Bus, topic: str, partition: int, offset: int, stop: int | None = None) -> list[ConsumerRecord]:
    """Return the records of a partition from ``offset`` to before ``stop``, by default to the present end."""
    place, taken = TopicPartition(topic, partition), list[ConsumerRecord]()
    async with asyncio.timeout(READ_TIMEOUT_S), read_alone(bus, "changelog") as records:
        records.assign([place])
        records.seek(place, offset)
        async for polled in read_to_end(records):
            taken += polled.get(place, ())
            if stop is not None and taken and taken[-1].offset >= stop - 1:
                break
    return taken if stop is None else [record for record in taken if record.offset < stop]
