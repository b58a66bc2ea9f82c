"""Parts of a bundle are published into shadow topics; a refused command changes no topic."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import tomli_w

from benchmarks import bundle as making
from benchmarks.curation_world import Odds, task_set
from console.runs import run_log
from console.runs.bundle import Bundle, BundleRecord
from console.runs.run_folder import without_nulls
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.store import connect_async
from dart_streams.store.asynchronous import AsyncStore
from tests import events
from tests.command_line import invoke
from topics import BY_NAME, observations
from topics.observations import Observation
from topics.values import BlobRef

RECORDED = "dart.recorded."
"""The prefix of the run whose bundle it is."""


@pytest.fixture
def config(services) -> Config:
    return services.config()


@pytest.fixture
def written(config: Config, tmp_path: Path) -> Path:
    """The deployment's configuration as a file."""
    (tmp_path / "tasks.toml").write_text(tomli_w.dumps({"pages": msgspec.to_builtins(task_set(2).pages)}))
    tables = without_nulls(msgspec.to_builtins(config))
    tables["tasks"]["file"] = "tasks.toml"
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(tables))
    return path


@pytest.fixture
def bundle(tmp_path: Path, config: Config) -> Bundle:
    path = tmp_path / "run.dart"
    tasks = task_set(4)
    settings = msgspec.structs.replace(config, bus=msgspec.structs.replace(config.bus, prefix=RECORDED))
    making.write(path, settings, tasks, making.play_rollouts(settings, tasks, 30, Odds()))
    return Bundle(path)


def now_in(config: Config, prefix: str, topic: str) -> list[BundleRecord]:
    bus = msgspec.structs.replace(config.bus, prefix=prefix)
    return sorted(run_log.present_records(bus, BY_NAME[topic]), key=lambda record: (record.partition, record.offset))


def topics_of(config: Config) -> dict[str, int]:
    """Return how many partitions each topic has; without those of other tests, which come and go beside this one."""
    with admin.connect(config.bus) as client:
        names = [name for name in client.list_topics() if config.bus.prefix in name or RECORDED in name]
        found = client.describe_topics(names) if names else []
    return {topic["name"]: len(topic["partitions"]) for topic in found}


def same(again: list[BundleRecord], kept: list[BundleRecord]) -> bool:
    def of(records: list[BundleRecord]):
        return [(one.partition, one.at_ms, one.key, one.value, one.headers) for one in records]

    return of(again) == of(kept)


FIRST_MS = making.MADE_MS


@pytest.mark.parametrize(
    ("options", "within"),
    [
        (("--from", "3", "--until", "11"), lambda one: 3 <= one.offset < 11),
        (
            ("--from", "2023-11-14T22:13:20.004+00:00", "--until", "2023-11-14T22:13:20.020+00:00"),
            lambda one: FIRST_MS + 4 <= one.at_ms < FIRST_MS + 20,
        ),
        (("--speed", "100x"), lambda one: True),
    ],
    ids=["offsets", "times", "speed"],
)
def test_a_part_of_a_bundle_is_published_with_its_keys_headers_and_times(
    config: Config, written: Path, bundle: Bundle, options: tuple[str, ...], within: Callable[[BundleRecord], bool]
):
    shadow = f"shadow.{config.bus.prefix}"
    names = ("trajectories", "curation-log")
    where = ("--into", shadow, "-c", str(written), "--topics", ",".join(names))
    done = invoke("replay", str(bundle.path), *where, *options)
    assert done.exit_code == 0, done.output
    for name in names:
        wanted = [record for record in bundle.records(name) if within(record)]
        assert wanted
        assert same(now_in(config, shadow, name), wanted)
    assert {name for name in topics_of(config) if name.startswith(shadow)} == {shadow + name for name in names}


def test_what_is_refused_makes_no_topic_and_changes_none(config: Config, written: Path, bundle: Bundle):
    live = f"live.{config.bus.prefix}"
    to_live = ("replay", str(bundle.path), "-c", str(written), "--into", live)
    assert invoke(*to_live, "--topics", "curated").exit_code == 0
    before, records = topics_of(config), now_in(config, live, "curated")
    for arguments, says in (
        (to_live, f"{live!r} is a live prefix"),
        ((*to_live, "--topics", "trajectories"), f"{live!r} is a live prefix"),
        ((*to_live[:-1], RECORDED), "is the prefix of the run itself"),
        ((*to_live[:-1], f"other.{config.bus.prefix}", "--topics", "weights-serving"), "has no weights-serving"),
        ((*to_live[:-1], "no prefix"), "is no prefix"),
    ):
        refused = invoke(*arguments)
        assert isinstance(refused.exception, UserError), refused.output
        assert says in str(refused.exception)
    assert topics_of(config) == before
    assert now_in(config, live, "curated") == records


def test_a_broker_that_is_not_there_is_named(config: Config, written: Path, bundle: Bundle):
    bus = msgspec.structs.replace(config.bus, servers="127.0.0.1:1", wait_s=0.2)
    tables = without_nulls(msgspec.to_builtins(msgspec.structs.replace(config, bus=bus)))
    written.write_text(tomli_w.dumps(tables))
    refused = invoke("replay", str(bundle.path), "--into", "shadow.", "-c", str(written))
    assert isinstance(refused.exception, ServiceUnavailable)
    assert "127.0.0.1:1" in str(refused.exception)


def shown(ref: BlobRef, step: int) -> Observation:
    return events.observation(step, screenshot=ref)


async def play(config: Config, *, lost: bool) -> None:
    """Publish two observations; the store has the screenshot of the first, and of the second if it is not lost."""
    session = await connect_async(config.store)
    try:
        store = AsyncStore(session, config.bus.run, cache_mb=0)
        kept = await store.put_blob(b"first", "image/png", 1, 1)
        other = msgspec.structs.replace(kept, sha256="ab" * 32)
        if not lost:
            other = await store.put_blob(b"two", "image/png", 1, 1)
        async with Publisher(config.bus, "test") as publisher:
            for step, ref in enumerate((kept, other)):
                await publisher.publish(observations.TOPIC, shown(ref, step))
    finally:
        session.cluster.shutdown()


def test_a_screenshot_that_the_store_lost_is_named_and_no_bundle_is_left(config: Config, written: Path, tmp_path: Path):
    asyncio.run(play(config, lost=True))
    path = tmp_path / "captured.dart"
    refused = invoke("capture", "-c", str(written), "-o", str(path), "--blobs")
    assert isinstance(refused.exception, UserError)
    assert "abababababab" in str(refused.exception)
    assert "capture without --blobs" in str(refused.exception)
    assert not list(tmp_path.glob("captured*"))
    without = invoke("capture", "-c", str(written), "-o", str(path))
    assert without.exit_code == 0, without.output
    assert len(list(Bundle(path).records("observations"))) == 2


def test_a_bundle_has_every_screenshot_and_is_never_written_over(config: Config, written: Path, tmp_path: Path):
    asyncio.run(play(config, lost=False))
    path = tmp_path / "captured.dart"
    done = invoke("capture", "-c", str(written), "-o", str(path), "--blobs")
    assert done.exit_code == 0, done.output
    assert {blob.data for blob in Bundle(path).blobs()} == {b"first", b"two"}
    whole = path.read_bytes()
    refused = invoke("capture", "-c", str(written), "-o", str(path))
    assert isinstance(refused.exception, UserError)
    assert "exists" in str(refused.exception)
    assert path.read_bytes() == whole
