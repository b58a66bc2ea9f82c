"""A circle survives faults of all parts at once: killed processes, republished topics, a frozen broker.

Each ends with every process killed and started once more, an orderly end, and the invariants of the run.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import topics
from benchmarks.private_services import private_folder
from dart_streams.bus import sync_clients
from dart_streams.config import Bus, Config, Run
from dart_streams.config.env import Simulated
from dart_streams.console.launch.services import local
from dart_streams.console.launch.services.daemon import Home, free_port
from dart_streams.console.launch.services.jvm import Kafka
from dart_streams.console.launch.services.local import bring_up
from dart_streams.console.runs.run_log import present_records
from dart_streams.deadline import Deadline
from dart_streams.java import SHARED_JARS
from tests.faults import invariants
from tests.faults.circle import WHOLE, circle, config_of
from tests.faults.invariants import read_lags
from topics import trajectories
from topics.observations import Observation
from topics.trajectories import Trajectory

pytestmark = pytest.mark.timeout(900)
FROZEN_S = 25.0 if WHOLE else 12.0
"""Longer than a broker's session with its controller (9 s): it is fenced meanwhile."""
LONG_EPISODES = Simulated(step_ms=400.0)
"""Longer than the time between two commits: a kill then finds orders that are taken, and may not be committed, and what
comes again finds open groups."""
SEND_S = 60.0
POLL_MS = 200
READY_S = 120.0
ALWAYS = {
    "observations",
    "actions",
    "action-requests",
    "rollout-orders",
    "trajectories",
    "curated",
    "weights",
    "trained",
}
"""Topics that have records once a step has been trained."""
GROUPS_READ = {"rollout-orders", "observations", "action-requests", "trajectories", "curated"}
"""Topics that consumer groups read, each committing what it has done."""


def open_episodes(config: Config) -> set[str]:
    """Return the trajectories that have begun and not ended."""
    observed = invariants.read(config).all(Observation)
    return {one.trajectory_id for one in observed} - {one.trajectory_id for one in observed if one.end is not None}


@pytest.mark.skipif(not WHOLE, reason="each of the other cases ends with it: set DART_SLOW_TESTS=1")
def test_everything_is_killed_at_once_and_the_run_goes_on_when_resumed(services, tmp_path: Path):
    with circle(config_of(services, tmp_path, env={"simulated": LONG_EPISODES}), "everything-killed") as running:
        running.kill_everything()
        assert open_episodes(running.config), "nothing was under way that a kill could lose"
        begin = time.monotonic()
        running.resume()
        running.goes_on()
        running.measured["recovery_s"] = round(time.monotonic() - begin, 1)
        running.is_killed_once_more_and_ends_well()


def publish_again(config: Config, has_headers: Callable[[int], bool]) -> dict[tuple[str, int], int]:
    """Publish every record that the topics have now once more, key and partition kept, and the headers of some.

    Returns the last offset of each partition by topic and number.
    """
    producer = sync_clients.create_producer(config.bus, "again")
    last: dict[tuple[str, int], int] = {}
    try:
        for topic in topics.ALL:
            sent = [
                producer.send(
                    config.bus.prefix + topic.name,
                    value=record.value,
                    key=record.key,
                    headers=record.headers if has_headers(number) else [],
                    partition=record.partition,
                )
                for number, record in enumerate(list(present_records(config.bus, topic)))
            ]
            for future in sent:
                place = future.get(timeout=SEND_S)
                last[topic.name, place.partition] = place.offset
    finally:
        producer.close(timeout=SEND_S)
    return last


def have_passed(config: Config, last: dict[tuple[str, int], int]) -> bool:
    """Say whether each consumer group has committed past these offsets of what it reads."""
    lags = asyncio.run(read_lags(config)) or []
    return {lag.topic for lag in lags} >= GROUPS_READ and all(
        lag.committed > last.get((lag.topic, lag.partition), -1) for lag in lags
    )


def repeats_in_open_groups(config: Config) -> list[str]:
    """Return the trajectories that came again before the last of their group's orders had finished."""
    first: dict[str, int] = {}
    closed_at: dict[str, int] = {}
    finishes = invariants.read(config).all(Trajectory)
    for place, one in enumerate(finishes):
        if first.setdefault(one.trajectory_id, place) == place:
            closed_at[one.group_id] = place
    return [
        one.trajectory_id
        for place, one in enumerate(finishes)
        if first[one.trajectory_id] < place < closed_at[one.group_id]
    ]


def publish_at_once_again(config: Config, count: int) -> None:
    """Publish each of the next finished trajectories once more as soon as it is there: its group is open still."""
    with (
        sync_clients.TopicReader(config.bus, "again", trajectories.TOPIC) as reader,
        contextlib.closing(sync_clients.create_producer(config.bus, "again")) as producer,
    ):
        past = {record.value for record in reader.read_to_end()}
        deadline, sent = Deadline(SEND_S), set[bytes]()
        while len(sent) < count and not deadline.expired:
            for record in reader.poll(POLL_MS):
                if record.value not in past | sent:
                    sent.add(record.value)
                    producer.send(record.topic, value=record.value, key=record.key, partition=record.partition)
            producer.flush(timeout=SEND_S)


def comes_again_in_an_open_group(config: Config) -> bool:
    """Publish some trajectories again at once; say whether one has come while its group was open."""
    publish_at_once_again(config, config.curation.budget.base)
    return bool(repeats_in_open_groups(config))


def test_every_record_of_every_topic_comes_again_with_and_without_headers(services, tmp_path: Path):
    slow = {"simulated": LONG_EPISODES} if WHOLE else {}
    with circle(config_of(services, tmp_path, env=slow), "republished") as running:
        begin = time.monotonic()
        once_each = (lambda _: True, lambda _: False)
        for has_headers in once_each if WHOLE else (lambda number: number % 2 == 0,):
            last = publish_again(running.config, has_headers)
            assert {name for name, _ in last} >= ALWAYS
        running.until(lambda: have_passed(running.config, last), "every repeat read")
        if WHOLE:
            running.until(lambda: comes_again_in_an_open_group(running.config), "a repeat that a group could count")
        running.goes_on()
        running.measured["recovery_s"] = round(time.monotonic() - begin, 1)
        running.is_killed_once_more_and_ends_well()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[Bus, psutil.Process]]:
    """A Kafka of this test's own: other tests need the session's while this one stands still."""
    with private_folder(suffix="-frozen") as folder:
        config = Config(bus=Bus(servers=f"127.0.0.1:{free_port()}"), run=Run(state_dir=str(folder)))
        home = Home(local.folder_of(config) / "kafka")
        kafka = bring_up(Kafka(config.bus, config.services), home, READY_S, lambda _: None, SHARED_JARS)
        yield config.bus, psutil.Process(kafka.pid)


def test_the_broker_stands_still_and_the_run_goes_on(services, broker: tuple[Bus, psutil.Process], tmp_path: Path):
    bus, process = broker
    with circle(config_of(services, tmp_path, bus={"servers": bus.servers}), "broker-frozen") as running:
        process.suspend()
        try:
            time.sleep(FROZEN_S)
        finally:
            process.resume()
        running.measured["recovery_s"] = round(running.goes_on(), 1)
        running.is_killed_once_more_and_ends_well()
