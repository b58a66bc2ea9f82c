"""Acts of outsiders on a circle's log and groups: moved offsets, removed records, forged records."""

import asyncio
import contextlib
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import psutil
from aiokafka.record.util import calc_crc32c
from kafka import OffsetAndMetadata, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import NoError

from console.runs.run_log import present_records, read_events
from dart_streams.bus import admin, sync_clients, topology
from dart_streams.bus.clients import Publisher, create_consumer, start_within
from dart_streams.config import Bus, Config
from dart_streams.deadline import Deadline
from tests.faults import poison, scene
from tests.faults.circle import POLL_S, Circle
from tests.faults.invariants import read_lags
from tests.worker_runs import throw_out
from topics import ALL, BY_NAME, Topic, curation_log, observations, trajectories
from topics.trajectories import Trajectory

TAKE_S = 240.0
MORE_S = 15.0


async def take(bus: Bus, topic: Topic, group: str, count: int) -> int:
    """Join a group, take at least ``count`` records, commit them, and leave; return the number taken."""
    member = create_consumer(bus, topic, group=group, client_id="stranger", session_timeout_ms=60_000)
    await start_within(member, bus)
    taken, deadline = 0, Deadline(TAKE_S)
    try:
        while taken < count and not deadline.expired:
            polled = await member.getmany(timeout_ms=500)
            taken += sum(map(len, polled.values()))
        await member.commit()
    finally:
        await member.stop()
    assert taken >= count, "the stranger got no partition"
    return taken


def taken_by_a_stranger(topic: str, group: str, count: int) -> Callable[[Circle], object]:
    """Have a stranger take records of a group, and commit them."""
    return lambda circle: asyncio.run(take(circle.config.bus, BY_NAME[topic], group, count))


async def announce(bus: Bus, changes: list[dict[str, object]]) -> None:
    """Announce trajectories that were not played, like the newest one but for some fields."""
    like = [event for event in read_events(bus, [trajectories.TOPIC]) if isinstance(event, Trajectory)][-1]
    async with Publisher(bus, "stranger") as publisher:
        for number, fields in enumerate(changes):
            event = msgspec.structs.replace(like, trajectory_id=f"stranger-{number}", **fields)
            await publisher.publish(trajectories.TOPIC, event)


def numbers_far_ahead(circle: Circle) -> None:
    """Announce trajectories of groups that dispatch has never given out."""
    ids = [f"g{number}/0/0" for number in (999_999_999, "9" * 20, "9" * 18)]
    rewarded = {"outcome": "success", "reward": 1.0}
    asyncio.run(announce(circle.config.bus, [{"order_id": name, **rewarded} for name in ids]))


WRONG_NAME = b"\xff\xfe"


def with_wrong_name(batch: bytes) -> bytes:
    """Return a batch of one record, its header ``~~`` under a name of the same length that is not UTF-8."""
    changed = bytearray(batch.replace(b"~~", WRONG_NAME))
    struct.pack_into(">I", changed, 17, calc_crc32c(bytes(changed[21:])))
    return bytes(changed)


def header_names_that_are_no_text(circle: Circle) -> None:
    """Put a record with such a header on every partition of every topic but the one that a replay reads strictly."""
    batch = with_wrong_name(poison.built(0, b"k", b"{}", [("~~", b"x")]))

    async def send() -> None:
        async with poison.raw_producer(circle.config.bus) as producer:
            for topic in set(ALL) - {curation_log.TOPIC}:
                for partition in await producer.partitions_for(circle.config.bus.prefix + topic.name):
                    await poison.send_raw(producer, circle.config.bus, topic, partition, batch)

    asyncio.run(send())


def newer_schema(circle: Circle) -> None:
    """Have an environment worker of a newer schema play for a while beside the others, as in a rolling upgrade."""
    command = [sys.executable, "-m", "tests.faults.newer_worker", str(circle.made.path), "env-newer"]
    name = circle.config.bus.prefix + "observations.dlq"
    with admin.connect(circle.config.bus) as client, subprocess.Popen(command) as worker:
        try:
            letters = sum(ends_of(client, circle.config.bus, [name]).values())
            circle.until(
                lambda: sum(ends_of(client, circle.config.bus, [name]).values()) > letters + 20, "refused observations"
            )
        finally:
            worker.kill()


def observations_removed(circle: Circle) -> None:
    """Remove all observations that there are while the recorder stands still, as their retention does.

    Where the recorder is behind, all that is ordered may be played already: then it goes on for a step first.
    """
    bus = circle.config.bus
    name = bus.prefix + "observations"
    with admin.connect(bus) as client:
        while True:
            frozen = circle.of_kind("recorder")
            scene.send(frozen, psutil.Process.suspend)
            try:
                if come_more(client, bus, name):
                    client.delete_records(ends_of(client, bus, [name]))
                    return
            finally:
                scene.send(frozen, psutil.Process.resume)
            circle.goes_on(1)


def come_more(client: KafkaAdminClient, bus: Bus, name: str) -> bool:
    """Return whether more than eight records come within :data:`MORE_S`."""
    before, deadline = sum(ends_of(client, bus, [name]).values()), Deadline(MORE_S)
    while not deadline.expired:
        if sum(ends_of(client, bus, [name]).values()) > before + 8:
            return True
        time.sleep(POLL_S)
    return False


GROUPS_READ = {"rollout-orders", "observations", "action-requests", "trajectories", "curated"}
"""Topics that consumer groups read, each committing what it has done."""
ALWAYS = GROUPS_READ | {"actions", "weights", "trained"}
"""Topics that have records once a step has been trained."""


def every_record_again(circle: Circle, has_headers: Callable[[int], bool]) -> None:
    """Publish every record of every topic once more, the headers of some; wait until each group has read them."""
    last = publish_again(circle.config.bus, has_headers)
    assert {name for name, _ in last} >= ALWAYS
    circle.until(lambda: have_passed(circle.config, last), "every repeat read")


def publish_again(bus: Bus, has_headers: Callable[[int], bool]) -> dict[tuple[str, int], int]:
    """Publish what the topics have now, key and partition kept; return the last offset by topic and partition."""
    last: dict[tuple[str, int], int] = {}
    with contextlib.closing(sync_clients.create_producer(bus, "again")) as producer:
        for topic in ALL:
            sent = [
                producer.send(
                    bus.prefix + topic.name,
                    value=record.value,
                    key=record.key,
                    headers=record.headers if has_headers(number) else [],
                    partition=record.partition,
                )
                for number, record in enumerate(list(present_records(bus, topic)))
            ]
            for future in sent:
                place = future.get(timeout=TAKE_S)
                last[topic.name, place.partition] = place.offset
    return last


def have_passed(config: Config, last: Mapping[tuple[str, int], int]) -> bool:
    """Say whether each consumer group has committed past these offsets of what it reads."""
    lags = asyncio.run(read_lags(config)) or []
    return {lag.topic for lag in lags} >= GROUPS_READ and all(
        lag.committed > last.get((lag.topic, lag.partition), -1) for lag in lags
    )


def ends_of(client: KafkaAdminClient, bus: Bus, names: Sequence[str]) -> dict[TopicPartition, int]:
    """Return the end offset of each partition of some topics."""
    return {
        TopicPartition(state.topic, number): end
        for state in admin.describe(client, topology.declare_topics(bus))
        if state.topic in names
        for number, end in enumerate(state.end_offsets)
    }


READ_BY = {
    "env": ("rollout-orders",),
    "recorder": ("observations",),
    "rollout": ("action-requests",),
    "curator": ("trajectories", "task-difficulty", "rollout-budgets", "curated", "weights"),
}


def offsets_moved_to_the_end(circle: Circle) -> None:
    """Move the offsets of every group to the end of what it reads; its dead members are removed first."""
    bus = circle.config.bus
    with admin.connect(bus) as client:
        for group, topics in READ_BY.items():
            throw_out(circle.config, group)
            ends = ends_of(client, bus, [bus.prefix + topic for topic in topics])
            offsets = {partition: OffsetAndMetadata(end, "", -1) for partition, end in ends.items()}
            deadline = Deadline(TAKE_S)
            while set(client.alter_group_offsets(f"{bus.prefix}{group}", offsets).values()) != {NoError}:
                assert not deadline.expired, f"group {group} still has members"
                time.sleep(0.5)


def topic_made_anew(bus: Bus, topic: str, *, keep_grown: bool = True) -> None:
    """Delete a topic, and make it again as soon as the broker has forgotten it."""
    name, deadline = bus.prefix + topic, Deadline(TAKE_S)
    with admin.connect(bus) as client:
        before = admin.topic_ids(client, [name])
        client.delete_topics([name])
        while admin.topic_ids(client, [name]) in ({}, before):
            assert not deadline.expired, f"{name} is not made again"
            admin.apply_all(bus, keep_grown=keep_grown)


def every_topic_deleted(circle: Circle) -> None:
    bus = circle.config.bus
    with admin.connect(bus) as client:
        client.delete_topics([name for name in client.list_topics() if name.startswith(bus.prefix)])


CAUSES: dict[str, Callable[[Circle], object]] = {
    "orders taken": taken_by_a_stranger("rollout-orders", "env", 8),
    "observations taken": taken_by_a_stranger("observations", "recorder", 45),
    "numbers far ahead": numbers_far_ahead,
    "header names": header_names_that_are_no_text,
    "newer schema": newer_schema,
    "observations removed": observations_removed,
}
UNREAD = frozenset(
    {
        "a finished trajectory lacks a step",
        "a request has neither an action nor a time-out",
        "the store is not what the log makes of it",
    }
)
"""Rules that need each observation, in the log and read by the recorder."""


def lost(running: Circle) -> int:
    """Return how many orders have ended as lost."""
    return sum(event.outcome == "lost" for event in read_events(running.config.bus, [trajectories.TOPIC]))


def has_episode(running: Circle) -> bool:
    """Return whether an episode is under way: its newest observation is not its end, and nothing said that it ended."""
    bus = running.config.bus
    ended = {event.order_id for event in read_events(bus, [trajectories.TOPIC])}
    newest = {event.order.order_id: event.end for event in read_events(bus, [observations.TOPIC])}
    return any(end is None for order, end in newest.items() if order not in ended)


def heal(running: Circle, causes: Sequence[str]) -> None:
    """Have each cause, and then offsets moved while the circle is down: it goes on, and counts the lost orders.

    Rules that need each observation do not hold then.
    """
    running.loses_orders, running.excused = True, UNREAD
    recovery = running.measured["recovery"] = {}
    for name in causes:
        CAUSES[name](running)
        begin = time.monotonic()
        running.goes_on(3)
        recovery[name] = round(time.monotonic() - begin, 1)
    running.measured["recovery_s"] = max(recovery.values())
    running.until(lambda: lost(running) > 0, "an order that is found lost")
    running.until(lambda: "records gone before they were read" in running.logs(), "the removed records are named")
    running.until(lambda: "orders were lost" in running.console.read_text(), "the lost orders at the terminal")
    for one in running.of_kind("rollout"):
        one.suspend()  # So an episode is not over when all are killed.
    running.until(lambda: has_episode(running), "an episode that waits for its policy")
    running.kill_everything()
    offsets_moved_to_the_end(running)
    before = lost(running)
    running.resume()
    running.until(lambda: lost(running) > before, "the orders between old and new offsets are found")
    running.goes_on(3)
