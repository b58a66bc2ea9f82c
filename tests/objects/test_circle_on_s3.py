"""Weights, checkpoints and screenshots of a run on a real S3 server, which dies and comes back: nothing is lost.

The trainer is the real one; answers are scripted, so it trains on the demonstrations.
"""

import asyncio
import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import msgspec
import pytest
import structlog
from rich.console import Console

from console.runs import run_folder
from console.runs.bundle import Bundle
from console.runs.run_log import read_events
from console.views.page.live_source import LiveSource
from dart_streams.config import Config, Store
from dart_streams.config.connections import StoreObjects
from dart_streams.config.env import StoredScreenshots
from dart_streams.config.rollout import Scripted
from dart_streams.errors import AccessRefused, ConfigError, ServiceUnavailable
from dart_streams.pictures import facts_of
from dart_streams.store import AsyncStore, MissingBlob, connect, create_schema, open_store, sync_store
from dart_streams.store.objects import BlobObjects
from tests.command_line import invoke, invoke_json
from tests.faults.circle import Circle, circle
from tests.faults.full.test_model_circle import model_config, policy
from tests.integration.exported_page import screens
from tests.integration.test_circle import HERE, circle_config, session_of
from tests.objects.server import BUCKET, PROGRAM, ObjectServer, running
from tests.waiting import until, wait_until
from topics import observations, rollout_orders

__all__ = ["policy"]

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="`make test-s3` builds the S3 server"),
]
SCREENSHOTS = f"s3://{BUCKET}/screenshots"
PICTURE = b"\x89PNG" + bytes(range(256))
WAITS = "waiting for the object store of screenshots"
ANSWER_S = 240.0
"""Longest time of a call that is to give up after seconds; the libraries alone take six minutes or more."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with running(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        yield server


@pytest.fixture
def config(services) -> Config:
    """A deployment with its screenshots on S3."""
    base = services.running
    objects = StoreObjects(uri=SCREENSHOTS)
    store = msgspec.structs.replace(base.store, keyspace=services.keyspace, objects=objects, wait_s=ANSWER_S)
    create_schema(store)
    return msgspec.structs.replace(base, store=store)


@contextlib.asynccontextmanager
async def opened(config: Config) -> AsyncIterator[AsyncStore]:
    async with contextlib.AsyncExitStack() as resources:
        yield await open_store(config, resources, cache_mb=1)


def rows_of(config: Config, sha256: str) -> int:
    session = connect(config.store)
    try:
        return len(list(session.execute("SELECT chunk FROM blobs WHERE sha256 = %s", (sha256,))))
    finally:
        session.cluster.shutdown()


async def test_a_screenshot_is_an_object_and_no_row(server: ObjectServer, config: Config):
    async with opened(config) as store:
        ref = await store.put_blob(PICTURE, "image/png", 4, 4)
        file = server.objects / BUCKET / "screenshots" / ref.sha256[:2] / ref.sha256
        assert file.read_bytes() == PICTURE
        assert await store.put_blob(PICTURE, "image/png", 4, 4) == ref
        file.unlink()
        await store.put_blob(PICTURE, "image/png", 4, 4)
        assert file.is_file(), "a lost one is written again"
    async with opened(config) as other:
        assert await other.get_blob(ref) == await other.blob_named(ref.sha256) == PICTURE
        file.write_bytes(PICTURE[:100])
        other.forget_blob(ref)
        with pytest.raises(MissingBlob, match="not in the store"):
            await other.get_blob(ref, patience_s=0.0)
    assert await asyncio.to_thread(rows_of, config, ref.sha256) == 0


async def test_screenshots_of_earlier_runs_are_read_from_the_database(server: ObjectServer, config: Config):
    database = msgspec.structs.replace(config.store, objects=StoreObjects())
    async with opened(msgspec.structs.replace(config, store=database)) as before:
        ref = await before.put_blob(PICTURE[::-1], "image/png", 4, 4)
    async with opened(config) as store:
        assert await store.get_blob(ref) == PICTURE[::-1]
        absent = msgspec.structs.replace(ref, sha256="0" * 64)
        with pytest.raises(MissingBlob, match="not in the store"):
            await store.get_blob(absent, patience_s=0.0)


def test_the_trainers_store_reads_and_writes_objects(server: ObjectServer, config: Config):
    session = connect(config.store)
    try:
        store = sync_store(session, config)
        refs = [store.put_blob(bytes([number]) * 9, "application/json") for number in range(5)]
        other = sync_store(session, config)
        assert list(other.get_blobs(refs).values()) == [bytes([number]) * 9 for number in range(5)]
        assert other.blob_named(refs[0].sha256) == bytes(9)
        objects = other.objects
        assert objects is not None
        objects.remove([ref.sha256 for ref in refs])
        objects.remove([refs[0].sha256])
        assert objects.get_many([ref.sha256 for ref in refs]) == [None] * 5
    finally:
        session.cluster.shutdown()


def test_a_server_that_is_away_a_bucket_and_wrong_keys_are_named(server: ObjectServer, monkeypatch):
    with pytest.raises(ConfigError, match="s3://misspelt/x does not exist"):
        BlobObjects("s3://misspelt/x", ANSWER_S).put("0" * 64, PICTURE)
    objects = BlobObjects(SCREENSHOTS, ANSWER_S)
    objects.put("0" * 64, PICTURE)
    server.kill()
    with pytest.raises(ServiceUnavailable, match=r"store\.objects\.uri"):
        BlobObjects(SCREENSHOTS, 2.0).get("0" * 64)
    server.start()
    assert objects.get("0" * 64) == PICTURE
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(AccessRefused, match="refuses a screenshot"):
        BlobObjects(SCREENSHOTS, ANSWER_S).put("1" * 64, PICTURE)


def test_a_server_that_never_answers_is_waited_for_no_longer(server: ObjectServer):
    objects = BlobObjects(SCREENSHOTS, ANSWER_S)
    objects.put("0" * 64, PICTURE)
    impatient = BlobObjects(SCREENSHOTS, 2.0)
    with server.silent(), ThreadPoolExecutor(1) as pool:
        with pytest.raises(ServiceUnavailable, match=r"no answer in time.* for 2 s: see store\.objects\.uri"):
            pool.submit(impatient.get, "0" * 64).result(ANSWER_S)
        with pytest.raises(ServiceUnavailable, match="no answer in time"):
            pool.submit(impatient.put, "1" * 64, PICTURE).result(ANSWER_S)
    assert objects.get("0" * 64) == PICTURE


def test_a_server_that_answers_503_is_awaited_and_logged(server: ObjectServer):
    objects = BlobObjects(SCREENSHOTS, ANSWER_S)
    with structlog.testing.capture_logs() as logs, ThreadPoolExecutor(1) as pool:
        with server.replaced_by_refusals() as requests:
            written = pool.submit(objects.put, "0" * 64, PICTURE)
            wait_until(lambda: any(WAITS in log["event"] for log in logs), "a log line about the outage")
            assert requests, "it was asked"
        written.result(ANSWER_S)
    assert objects.get("0" * 64) == PICTURE


async def test_the_event_loop_turns_while_the_server_is_silent(server: ObjectServer, config: Config):
    """A call that blocked the loop would fail: nothing lets the server go on but the loop itself."""
    async with opened(config) as store:
        ref = await store.put_blob(PICTURE, "image/png", 4, 4)
        store.forget_blob(ref)
        with server.silent():
            calls = [asyncio.ensure_future(call) for call in (store.get_blob(ref), store.put_blob(b"x", "x/y", 1, 1))]
            await asyncio.wait(calls, timeout=2.0)
            assert not any(call.done() for call in calls)
        assert await calls[0] == PICTURE
        await calls[1]


async def test_the_page_names_a_silent_server(server: ObjectServer, config: Config):
    async with opened(config) as store:
        ref = await store.put_blob(PICTURE, "image/png", 4, 4)
    source = LiveSource(config, None)

    async def shown() -> bool:
        with contextlib.suppress(ServiceUnavailable):
            return await source.screenshot(ref.sha256) == PICTURE
        return False

    try:
        with server.silent(), pytest.raises(ServiceUnavailable, match=r"store\.objects\.uri"):
            await asyncio.wait_for(source.screenshot(ref.sha256), ANSWER_S)
        assert await until(shown)
    finally:
        await source.close()


def s3_config(services, folder: Path, policy: Path) -> Config:
    base = model_config(services, folder, policy, engine="scripted", scripted=Scripted(success_rate=0.0))
    replace = msgspec.structs.replace
    return replace(
        base,
        env=replace(base.env, screenshots=StoredScreenshots(format="webp")),
        store=replace(base.store, objects=StoreObjects(uri=SCREENSHOTS), wait_s=120.0),
        trainer=replace(
            base.trainer, weights_uri=f"s3://{BUCKET}/weights", checkpoints_uri=f"s3://{BUCKET}/checkpoints"
        ),
    )


def objects_in(server: ObjectServer, folder: str) -> list[Path]:
    return [path for path in (server.objects / BUCKET / folder).rglob("*") if path.is_file()]


def shown_in(config: Config) -> set[str]:
    """Return the digests of the screenshots that the run's records name."""
    events = read_events(config.bus, [observations.TOPIC])
    return {event.screenshot.sha256 for event in events if event.screenshot is not None}


def is_halted_in_episodes(made: Circle) -> bool:
    """Stop the environment worker; let it go on if it has fewer than two orders."""
    worker = made.of_kind("env")[0]
    worker.suspend()
    ordered = {event.order_id for event in read_events(made.config.bus, [rollout_orders.TOPIC])}
    shown = read_events(made.config.bus, [observations.TOPIC])
    if len(ordered - {event.order.order_id for event in shown if event.end is not None}) >= 2:
        return True
    worker.resume()
    return False


def test_a_run_outlives_its_object_store(services, server: ObjectServer, policy: Path, tmp_path: Path):
    """The environment worker is in episodes when the server dies: else it may have nothing to wait for."""
    with circle(s3_config(services, tmp_path / "state", policy), "object-store") as made:
        made.until(lambda: is_halted_in_episodes(made), "two episodes under way")
        server.kill()
        made.of_kind("env")[0].resume()
        log = made.made.path / "logs/env-0.log"
        made.until(lambda: WAITS in log.read_text(errors="replace"), "an environment worker that waits for the server")
        server.start()
        made.goes_on()
        checkpoints = made.made.path / "checkpoints"
        assert checkpoints.is_dir()
        made.kill_everything()
        server.kill()
        server.start()
        shutil.rmtree(checkpoints)
        before = made.steps()
        made.resume(before + 2)
        made.until(lambda: made.steps() > before, "a step from the checkpoint on S3")
        made.ends_well()
        stored = {path.name: path.read_bytes() for path in objects_in(server, "screenshots")}
        shown = shown_in(made.config)
        assert shown <= stored.keys()
        for sha256 in shown:
            assert hashlib.sha256(stored[sha256]).hexdigest() == sha256
            assert facts_of(stored[sha256]).media_type == "image/webp"
        assert {path.name for path in objects_in(server, "weights")}, "versions are there"
        assert not rows_of_blobs(made.config.store, shown), "no screenshot is in the database"


def rows_of_blobs(store: Store, digests: set[str]) -> set[str]:
    session = connect(store)
    try:
        return {row[0] for row in session.execute("SELECT DISTINCT sha256 FROM blobs")} & digests
    finally:
        session.cluster.shutdown()


def test_page_replay_and_removal_find_screenshots_on_s3(services, server: ObjectServer, tmp_path: Path):
    replace, base = msgspec.structs.replace, circle_config(services, tmp_path, episodes=4, train_steps=2)
    # Tables of its own: other tests' runs show the same screens, and these would stay.
    objects = replace(base.store, keyspace=f"{base.store.keyspace}_s3", objects=StoreObjects(uri=SCREENSHOTS))
    config = replace(base, env=replace(base.env, screenshots=StoredScreenshots(format="webp")), store=objects)
    made = run_folder.create(config, HERE / "circle-tasks.toml", run_folder.new_id(), resume=False)
    asyncio.run(session_of(made, Console(file=io.StringIO(), width=160)).run())
    report = json.loads((made.path / "report.json").read_text())
    assert (report["outcome"], report["lost"]) == ("complete", 0)
    pictures = screens(made.path / "report.html").values()
    assert pictures
    assert {facts_of(picture).media_type for picture in pictures} == {"image/webp"}
    bundle, state = made.path / "run.dart", str(tmp_path)
    done = invoke("capture", made.id, "--state", state, "-o", bundle, "--blobs")
    assert done.exit_code == 0, (done.output, done.exception)
    assert invoke_json("replay", bundle)["equal"] is True
    assert shown_in(made.config()) <= {blob.sha256 for blob in Bundle(bundle).blobs()}
    done = invoke("runs", "rm", made.id, "--state", state, "--screenshots", "--yes")
    assert done.exit_code == 0, (done.output, done.exception)
    assert objects_in(server, "screenshots") == []
