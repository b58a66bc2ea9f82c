"""A viewer sees a sentence before the run has topics, then its policy's demonstrations, then the run."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qsl

import msgspec
import pytest

from console.views.page import live_source
from console.views.page.live_source import LiveSource
from console.views.page.views import PageViews
from console.views.page.wall import SlotGrid
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher
from dart_streams.config import Bus, Config, parse
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from dart_streams.store import sessions
from tests.events import episode
from tests.stored_rows import cluster_of
from topics import observations
from topics.observations import Observation

BOUND_S = 120.0


@pytest.fixture
def config(services) -> Config:
    """A run that has not begun: nothing of it is on the broker."""
    made = services.config(env={"slots": 4})
    return msgspec.structs.replace(made, bus=msgspec.structs.replace(made.bus, prefix=f"{made.bus.prefix}later."))


@contextlib.asynccontextmanager
async def watched(config: Config) -> AsyncIterator[LiveSource]:
    """Yield the run as a viewed page reads it."""
    source = LiveSource(config, None)
    source.note_viewer()
    reading = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def until(condition: Callable[[], bool], source: LiveSource) -> None:
    deadline = Deadline(BOUND_S)
    while not condition():
        assert not deadline.expired, (source.progress, source.state.newest)
        source.note_viewer()
        await asyncio.sleep(0.05)


async def publish(bus: Bus, *events: Observation) -> None:
    async with Publisher(bus, "test") as publisher:
        for event in events:
            await publisher.publish(observations.TOPIC, event)


async def test_the_demonstrations_are_on_the_wall_until_the_run_has_topics(config: Config):
    grid = SlotGrid(config)
    async with watched(config) as source:

        def shown() -> list[tuple[str, str]]:
            return [(tile.trajectory_id, tile.state) for tile in grid.update(source.state)]

        await until(lambda: "has not begun" in source.progress.text, source)
        await asyncio.to_thread(admin.apply_all, config.bus.of_demonstrations)
        await publish(config.bus.of_demonstrations, episode(1)[0])
        await until(lambda: shown()[:1] == [("t1", "waits")], source)
        await publish(config.bus.of_demonstrations, *episode(2))
        await until(lambda: shown()[:2] == [("t1", "waits"), ("t2", "ended")], source)
        await until(lambda: source.progress.ready, source)
        assert "demonstrations" in source.progress.text
        await asyncio.to_thread(admin.apply_all, config.bus)
        await publish(config.bus, episode(3)[0])
        await until(lambda: shown()[:2] == [("t3", "waits"), ("", "free")], source)
        await until(lambda: source.progress.ready and not source.progress.text, source)
        assert source.state.finished == {}, "a demonstration counts as no episode of the run"


def patient(config: Config) -> Config:
    """Return a run whose processes wait an hour for broker and store; a viewer must not."""
    bus, store = (msgspec.structs.replace(one, wait_s=3600.0) for one in (config.bus, config.store))
    return msgspec.structs.replace(config, bus=bus, store=store)


async def test_a_topic_that_is_not_there_is_a_sentence_within_seconds(config: Config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_source, "REQUEST_TIMEOUT_S", 15.0)  # The broker answers within it.
    source = LiveSource(patient(config), None)
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(ServiceUnavailable, match="no topic"):
            await source.records(observations.TOPIC, b"", 10)
        assert await source.dead_letters(None) == []


async def test_without_broker_and_store_every_page_answers_within_seconds():
    missing = patient(parse({"bus": {"servers": "127.0.0.1:1"}, "store": {"port": 1}}, "the test"))
    views = PageViews(LiveSource(missing, None))
    asked = ["log?topic=observations", "trajectory?id=t", "lag?", "report?", "dead-letters?"]
    queries = [(name, dict(parse_qsl(query))) for name, _, query in (one.partition("?") for one in asked)]
    async with asyncio.timeout(BOUND_S):
        found = await asyncio.gather(*(views.answer(name, query) for name, query in queries), return_exceptions=True)
    assert [type(one) for one in found] == [ServiceUnavailable] * len(asked)
    assert all("dart-streams up" in str(one) for one in found)
    await views.source.close()


async def test_a_viewer_makes_no_keyspace_in_a_store_that_has_none_yet(services, config: Config, monkeypatch):
    monkeypatch.setattr(sessions, "CONNECT_TIMEOUT_S", BOUND_S)
    absent = msgspec.structs.replace(config.store, keyspace=f"absent_{uuid.uuid4().hex[:8]}", wait_s=1.0)
    source = LiveSource(msgspec.structs.replace(config, store=absent), None)
    with pytest.raises(ServiceUnavailable, match="does not exist"):
        await source.steps("t")
    await source.close()
    with cluster_of(absent) as cluster:
        cluster.connect()
        assert absent.keyspace not in cluster.metadata.keyspaces
