"""Who may write the journal of a partition: one curator, the last that claimed it.

Two curators may believe that they own a partition: one that was frozen wakes up after another took its place, and
neither Faust nor a static group membership stops it. What decides is the order of the changelog, without a lock:

1. A new owner writes a claim with a higher incarnation, knows everything before it, and goes on from there.
2. An owner writes under keys of its incarnation, which no other overwrites, and one record at a time. The offset that
   the broker returns says whether anyone else has written in between; only then is that read.
3. A record counts if no newer claim precedes it. Its writer knows before it publishes what the record stands for, and
   the new owner, which knows all before its claim, has it. A writer that finds a newer claim publishes nothing, and
   :class:`OwnershipLost` ends its process.
4. A rebalance may give a partition back, and then it is claimed anew. But where a process of the same id has claimed it
   in between, that one was started in place of this one: :class:`Replaced` ends this one, rebalance or not. The group
   does not fence it: aiokafka's heartbeats do not name the static member, so who was replaced joins again as itself.

So at most one record of a former owner comes after the claim, and nobody has acted on it. Kafka's transactions would
fence a former owner too, but with three more requests a batch, and their markers at the end of a changelog are records
that Faust's recovery waits for in vain.
"""

import asyncio
import functools
from collections import defaultdict
from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec
import structlog
from aiokafka import ConsumerRecord, TopicPartition

from dart_streams.bus.clients import create_consumer, read_to_end, start_within
from dart_streams.config import Bus
from dart_streams.curation.changelog import ChangelogView, Value
from dart_streams.curation.journal import Claim, encode
from dart_streams.curation.journal_keys import claim_key
from dart_streams.errors import UserError

READ_TIMEOUT_S = 60.0
"""How long reading the end of a changelog may take."""

log = structlog.get_logger()


class ReadFrom(Protocol):
    """Reads a topic's partition."""

    def __call__(
        self, topic: str, partition: int, offset: int, stop: int | None = None
    ) -> Awaitable[list[ConsumerRecord]]:
        """Return the records from an offset to the one before ``stop``, or to the present end."""


class OwnershipLost(UserError):
    """Another curator has claimed a partition; the supervisor starts this one anew."""

    exit_code = 1


class Replaced(OwnershipLost):
    """The other curator has this one's id: it was started in its place."""


class Changelog:
    """The changelog of an agent's table: what is known of each partition, and how a record is added.

    What Faust's recovery reads is noted here with its offset. The table's own dictionary is not used: a recovery that
    runs beside a write would put older values over newer ones, and it may skip records unseen.
    """

    def __init__(self, name: str, owner: str, read_from: ReadFrom) -> None:
        self.name = name
        self.owner = owner
        self.read_from = read_from
        self.table: Any = None
        self.views: dict[int, ChangelogView] = defaultdict(ChangelogView)
        self.recovered = 0
        """How many records Faust's recoveries have read."""
        self.claims: dict[int, int] = {}
        """By partition the newest incarnation that this process has claimed."""

    async def note_recovered(self, event: Any) -> None:
        """Note a record that Faust's recovery has read. What it may have skipped is read by :meth:`write`."""
        message = event.message
        self.recovered += 1
        if message.topic == self.name:
            self.views[message.partition].note(message.offset, message.key, message.value)

    async def write(self, partition: int, key: bytes, value: Value) -> int:
        """Write a record; return its offset once the broker has it and everything before it is known.

        Raises OwnershipLost if the topic is not the one that was written to before.
        """
        view = self.views[partition]
        offset: int = (await self.table.send_changelog(partition, key, value)).offset
        if offset > view.position:
            await self.read_on(partition)
        elif offset < view.position and not view.has(offset, key, value):
            raise OwnershipLost(f"{self.name}[{partition}] was deleted and made again while this curator wrote to it")
        view.note(offset, key, value)
        return offset

    async def read_on(self, partition: int) -> None:
        """Note what follows the position that is known."""
        view = self.views[partition]
        for record in await self.read_from(self.name, partition, view.position):
            view.note_read(record.offset, record.key, record.value)

    async def refuse_replaced(self, partition: int) -> None:
        """Raise Replaced if, by what the broker has now, a process of the same id claimed the partition after us."""
        if partition in self.claims:
            await self.read_on(partition)
            JournalWriter(self, partition, self.claims[partition]).check(others=False)

    async def claim(self, partition: int) -> "JournalWriter":
        """Become the owner of a partition; everything that a former owner has acted on is known on return.

        Raises OwnershipLost if meanwhile another curator has claimed it.
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
    """Writes the journal of one partition as its owner number ``incarnation``."""

    def __init__(self, changelog: Changelog, partition: int, incarnation: int) -> None:
        self.changelog = changelog
        self.partition = partition
        self.incarnation = incarnation
        self.view = changelog.views[partition]

    async def write(self, key: bytes, value: Value) -> None:
        """Write a record; return when it counts. Raises OwnershipLost if it does not, or if the next one would not."""
        await self.changelog.write(self.partition, key, value)
        self.check()

    async def delete_superseded(self) -> None:
        """Delete what former owners wrote. To be called once a snapshot of this one counts."""
        keys = self.view.superseded(self.incarnation)
        await asyncio.gather(*(self.write(key, None) for key in keys))

    def check(self, *, others: bool = True) -> None:
        """Raise OwnershipLost if another curator has claimed the partition since; Replaced if it has the same id.

        Without ``others`` only the latter.
        """
        if self.view.claimed <= self.incarnation:
            return
        claims = self.view.claims_after(self.incarnation)
        owners = [msgspec.msgpack.decode(claim, type=Claim).owner for claim in claims]
        place = f"{self.changelog.name}[{self.partition}]"
        if self.changelog.owner in owners:
            raise Replaced(ownership_text(place, self.changelog.owner) + REPLACED)
        if others:
            raise OwnershipLost(ownership_text(place, owners[-1] if owners else "its name is lost"))


REPLACED = ". It has the same id: only one may run; for more curators give each an id of its own (--id)"


def ownership_text(place: str, owner: str) -> str:
    """Return the error of a former owner."""
    return (
        f"{place} belongs to another curator process now ({owner}), which claimed it while this one stood still or was "
        "cut off: what this one decided since was not published"
    )


def bind_reader(bus: Bus) -> ReadFrom:
    """Return the function that reads the end of a topic's partition from the broker."""
    return functools.partial(read_from, bus)


async def read_from(bus: Bus, topic: str, partition: int, offset: int, stop: int | None = None) -> list[ConsumerRecord]:
    """Return the records of a topic's partition from an offset to the one before ``stop``, or to the present end."""
    records = create_consumer(bus, group=None, client_id="changelog")
    place = TopicPartition(topic, partition)
    async with asyncio.timeout(READ_TIMEOUT_S):
        await start_within(records, bus)
        try:
            records.assign([place])
            records.seek(place, offset)
            found: list[ConsumerRecord] = []
            async for polled in read_to_end(records):
                found += polled.get(place, ())
                if stop is not None and found and found[-1].offset >= stop - 1:
                    break
            return found if stop is None else [record for record in found if record.offset < stop]
        finally:
            await records.stop()
