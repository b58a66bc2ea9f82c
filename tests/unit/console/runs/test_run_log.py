"""A run's log is folded to the same state whichever way it is read: from live topics, or from a bundle."""

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from aiokafka import TopicPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.runs.bundle import Bundle, BundleRecord, Manifest, Writer
from console.runs.run_follower import CIRCLE, FOLLOWED, RunFollower
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from console.runs.weight_versions import curated_ages
from dart_streams.bus.codec import encode
from dart_streams.config import parse
from dart_streams.telemetry.stall_detector import StallDetector
from tests import events
from tests.unit.console.runs.test_run_state import START, finish, serving, version
from topics import ALL, Topic, curated, observations, rollout_orders, trajectories, weights, weights_serving
from topics.curated import CuratedGroup
from topics.observations import EpisodeEnd, Observation
from topics.values import BlobRef

BUS = parse({"bus": {"prefix": "dart.test."}}).bus
PARTITIONS = 2


def observation(number: int, step: int) -> Observation:
    return events.observation(
        step,
        trajectory_id=f"t{number}",
        order=events.rollout_order(f"o{number}"),
        screenshot=BlobRef(sha256=f"{number}{step}", size=1),
        end=EpisodeEnd(kind="success", reward=1.0) if step == 2 and number != 3 else None,
        env_host=f"env-{number % 2}",
        at_ms=START + 1_000 * step,
    )


def group(number: int) -> CuratedGroup:
    member = events.member(f"t{number}", version=number)
    return events.curated_group(f"g{number}", member)


EVENTS = {
    rollout_orders.TOPIC: [events.rollout_order(f"o{n}") for n in range(5)],
    observations.TOPIC: [observation(n, step) for n in range(4) for step in range(3)],
    trajectories.TOPIC: [finish(f"o{n}", f"t{n}") for n in range(3)],
    curated.TOPIC: [group(n) for n in range(3)],
    weights.TOPIC: [version(n, n) for n in range(4)],
    weights_serving.TOPIC: [serving(n, n, 10.0) for n in range(3)],
}
FIELDS = [name for name in vars(RunState()) if name not in ("keep_steps", "observations") and not name.startswith("_")]


def records_of(topic: Topic, rng: random.Random) -> list[BundleRecord]:
    """Return a topic's records, some of them written twice, in partitions by their keys."""
    offsets, found = dict.fromkeys(range(PARTITIONS), 0), []
    for event in EVENTS.get(topic, []):
        for _ in range(rng.choice([1, 1, 2])):
            record = encode(topic, event)
            partition = sum(record.key) % PARTITIONS
            at_ms = START + 1_000 * len(found) + ALL.index(topic)
            place = partition, offsets[partition], at_ms
            found.append(BundleRecord(*place, record.key, record.value, list(record.headers)))
            offsets[partition] += 1
    return found


class LiveTopics:
    """A consumer that hands out the partitions' records in random turns."""

    def __init__(self, log: dict[Topic, list[BundleRecord]], rng: random.Random) -> None:
        self.rng = rng
        self.left = {
            TopicPartition(BUS.prefix + topic.name, number): [one for one in records if one.partition == number]
            for topic, records in log.items()
            for number in range(PARTITIONS)
        }

    async def getmany(self, **_) -> dict:
        place = self.rng.choice([place for place, records in self.left.items() if records])
        taken = self.left[place][: self.rng.randint(1, 4)]
        del self.left[place][: len(taken)]
        return {place: [SimpleNamespace(**msgspec.structs.asdict(one), timestamp=one.at_ms) for one in taken]}


def followed(log: dict[Topic, list[BundleRecord]], rng: random.Random) -> RunState:
    async def follow() -> RunState:
        live = LiveTopics(log, rng)
        follower = RunFollower(BUS, live, 1.0)
        while any(live.left.values()):
            await follower.poll()
        return follower.progress

    return asyncio.run(follow())


async def test_a_wait_that_stands_still_says_which_topic_does_and_why():
    now, lines = 0.0, list[dict]()
    records = [one for one in records_of(observations.TOPIC, random.Random(1)) if one.partition == 0][:1]
    follower = RunFollower(BUS, LiveTopics({observations.TOPIC: records}, random.Random(1)), 30.0)
    follower.clock, follower.since_s = lambda: now, now
    log = SimpleNamespace(warning=lambda event, **fields: lines.append(fields))
    waiting = StallDetector(log, "the end", 30.0, clock=lambda: now)
    await follower.poll()
    follower.check(waiting, "the end")
    now = 31.0
    follower.check(waiting, "the end")
    [line] = lines
    assert line["waits_for"] == (
        "the end (action-requests silent for 31 s: "
        "input on observations, but nothing from environment workers yet: once started, look at the log)"
    )


def bundled(path: Path, log: dict[Topic, list[BundleRecord]]) -> Bundle:
    with Writer(path, Manifest(run="test", prefix=BUS.prefix, captured_ms=0, schemas={})) as bundle:
        for topic, records in log.items():
            bundle.records(topic.name, records)
    return Bundle(path)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_live_topics_and_a_bundle_give_the_same_state(tmp_path: Path, rng: random.Random):
    log = {topic: records_of(topic, rng) for topic in FOLLOWED}
    live, again = followed(log, rng), RunState().fold(read_log(bundled(tmp_path / "run.dart", log), FOLLOWED))
    for field in FIELDS:
        assert getattr(live, field) == getattr(again, field), field
    assert curated_ages(live) == curated_ages(again) != []


def test_kept_steps_are_decoded_in_full_and_broken_records_are_left_out(tmp_path: Path):
    log = {topic: records_of(topic, random.Random(1)) for topic in FOLLOWED}
    state = RunState(keep_steps=True).fold(read_log(bundled(tmp_path / "run.dart", log), FOLLOWED))
    assert state.observation("t1", 2) == observation(1, 2)
    assert state.observation("t1", 3) is None
    assert state.screenshots["12"] == [("t1", 2)], "also where it was written twice"
    whole = records_of(trajectories.TOPIC, random.Random(0))
    log = {trajectories.TOPIC: [BundleRecord(0, 0, START, b"k", b"{", []), *whole]}
    assert len(RunState().fold(read_log(bundled(tmp_path / "run.dart", log), FOLLOWED)).trajectories) == 3


@pytest.mark.parametrize("topic", [topic for topic in CIRCLE if topic not in FOLLOWED], ids=lambda topic: topic.name)
def test_a_topic_that_is_not_folded_live_counts_as_active(topic: Topic):
    record = BundleRecord(0, 0, START, b"k", b'{"worker_id": "rollout-0"}', [])
    state = followed({topic: [record]}, random.Random(0))
    assert (state.activity[topic.name].records, state.activity[topic.name].at_ms) == (1, START)
