"""Members of a group on a real broker keep their partitions; members of an older version may be among them."""

import asyncio
import contextlib
from collections.abc import Collection
from itertools import chain

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from dart_streams.bus.clients import create_consumer, start_within
from dart_streams.config import Bus
from tests.worker_runs import BOUND_S
from topics import action_requests

PARTITIONS = 4
OLDER = {"partition_assignment_strategy": (RoundRobinPartitionAssignor,)}
"""Settings of a member of a version before sticky assignment."""

Owned = dict[str, list[int]]


async def joined(bus: Bus, members: contextlib.AsyncExitStack, name: str, **settings) -> AIOKafkaConsumer:
    """Return a new member of the group, which learns soon that others come or go."""
    settings |= {"client_id": name, "heartbeat_interval_ms": 200, "session_timeout_ms": 60_000}
    member = create_consumer(bus, action_requests.TOPIC, group="rollout", **settings)
    members.push_async_callback(member.stop)
    await start_within(member, bus)
    return member


async def settled(members: Collection[AIOKafkaConsumer]) -> Owned:
    """Return the partitions of each member, once all are in one generation and each partition has one member."""
    async with asyncio.timeout(BOUND_S):
        while True:
            owned = {member._client._client_id: partitions_of(member) for member in members}
            generations = {member._coordinator.generation for member in members}
            if len(generations) == 1 and sorted(chain.from_iterable(owned.values())) == [*range(PARTITIONS)]:
                return owned
            await asyncio.sleep(0.1)


def partitions_of(member: AIOKafkaConsumer) -> list[int]:
    return sorted(partition.partition for partition in member.assignment())


async def test_four_members_that_join_at_once_settle_and_keep_their_partitions(services):
    bus = services.config().bus
    async with contextlib.AsyncExitStack() as living:
        members = await asyncio.gather(*(joined(bus, living, name) for name in "abcd"))
        owned = await settled(members)
        assert sorted(map(len, owned.values())) == [1, 1, 1, 1]
        await members[0].stop()
        after = await settled(members[1:])
        assert sorted(map(len, after.values())) == [1, 1, 2]
        assert all(set(after[name]) >= set(owned[name]) for name in "bcd")
        again = await settled([*members[1:], await joined(bus, living, "e")])
        assert sorted(map(len, again.values())) == [1, 1, 1, 1]
        assert all(set(again[name]) <= set(after[name]) for name in "bcd")


async def test_members_of_an_older_version_are_in_the_same_group(services):
    """As in an upgrade of one worker after the other."""
    bus = services.config().bus
    async with contextlib.AsyncExitStack() as living:
        older = [await joined(bus, living, name, **OLDER) for name in "ab"]
        newer = [await joined(bus, living, name) for name in "cd"]
        assert sorted(map(len, (await settled([*older, *newer])).values())) == [1, 1, 1, 1]
        for number, name in enumerate("ef"):
            await older[number].stop()
            newer.append(await joined(bus, living, name))
        owned = await settled(newer)
        await newer[0].stop()
        after = await settled(newer[1:])
        assert all(set(after[name]) >= set(owned[name]) for name in "def")
