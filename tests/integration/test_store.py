"""The store on a real Cassandra."""

import asyncio
import os
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from benchmarks.trained_rows import trained_rows
from console.launch.services.daemon import free_port
from console.repair import projection
from console.runs import run_folder as folder
from dart_streams.config import Store
from dart_streams.errors import ConfigError, ServiceUnavailable
from dart_streams.store import AsyncStore, MissingBlob, SyncStore, connect, connect_async, create_schema, sessions
from dart_streams.store.blobs import CHUNK_BYTES, ref_of
from dart_streams.store.sessions import TableGone
from dart_streams.store.statements import DamagedRow
from tests import events
from tests.command_line import invoke
from tests.stored_rows import trajectories_in
from topics.observations import EpisodeEnd, Observation
from topics.trajectories import Trajectory
from topics.values import BlobRef

BOUND_S = 120.0


@pytest.fixture(scope="module")
def session(services):
    session = connect(services.config().store)
    yield session
    session.cluster.shutdown()


@pytest.fixture
def run() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def store(session, run: str) -> SyncStore:
    return SyncStore(session, run, 1)


def observation(trajectory_id: str, step: int, end: EpisodeEnd | None = None) -> Observation:
    at_ms = 1_700_000_000_000 + step
    return events.observation(step, trajectory_id=trajectory_id, instruction="Click “it”.", end=end, at_ms=at_ms)


def trajectory(trajectory_id: str, finished_ms: int, task_id: str = "simulated/box#1") -> Trajectory:
    return events.trajectory(trajectory_id, task_id=task_id, step_entropies=[0.5], finished_ms=finished_ms)


@pytest.mark.parametrize("size", [0, 1, 6_000, CHUNK_BYTES, CHUNK_BYTES + 1, 3_000_000])
async def test_a_screenshot_of_any_size_comes_back_as_it_was_to_every_reader(session, run, size):
    data = os.urandom(size)
    ref = await AsyncStore(session, run, 8).put_blob(data, "image/png", 3, 4)
    assert (ref.size, ref.width, ref.height, ref.media_type) == (size, 3, 4, "image/png")
    assert await AsyncStore(session, run, 8).get_blob(ref) == data
    assert SyncStore(session, run, 0).get_blobs([ref]) == {ref.sha256: data}
    if size:
        assert SyncStore(session, run, 0).blob_named(ref.sha256) == data
        assert await AsyncStore(session, run, 8).blob_named(ref.sha256) == data


async def test_a_blob_that_was_not_written_is_missing_for_both_readers(session, run):
    ref = BlobRef(sha256="0" * 64, size=5)
    with pytest.raises(MissingBlob, match="not in the store"):
        await AsyncStore(session, run, 1).get_blob(ref, patience_s=0.1)
    with pytest.raises(MissingBlob, match="not in the store"):
        SyncStore(session, run, 1).get_blobs([ref])
    with pytest.raises(MissingBlob, match="not in the store"):
        SyncStore(session, run, 1).blob_named(ref.sha256)


async def test_a_blob_of_which_a_chunk_is_missing_is_missing(session, run):
    data = os.urandom(2 * CHUNK_BYTES)
    ref = await AsyncStore(session, run, 1).put_blob(data, "image/png", 1, 1)
    session.execute("DELETE FROM blobs WHERE sha256 = %s AND chunk = 1", (ref.sha256,))
    with pytest.raises(MissingBlob, match=f"only {CHUNK_BYTES} bytes"):
        await AsyncStore(session, run, 1).get_blob(ref, patience_s=0.1)


async def test_a_cached_blob_is_not_read_again_and_is_rewritten_after_a_wipe(session, run):
    store, data = AsyncStore(session, run, 8), os.urandom(2 * CHUNK_BYTES + 1)
    ref = await store.put_blob(data, "image/png", 1, 1)
    written_at = "SELECT writetime(data) FROM blobs WHERE sha256 = %s"
    before = session.execute(written_at, (ref.sha256,)).all()
    assert await store.put_blob(data, "image/png", 1, 1) == ref
    assert session.execute(written_at, (ref.sha256,)).all() == before
    for chunk in (1, None):
        which = "" if chunk is None else f" AND chunk = {chunk}"
        session.execute(f"DELETE FROM blobs WHERE sha256 = %s{which}", (ref.sha256,))
        assert await store.get_blob(ref) == data, "from the cache"
        assert await store.put_blob(data, "image/png", 1, 1) == ref
        assert await AsyncStore(session, run, 8).get_blob(ref, patience_s=0) == data


async def test_a_torn_row_is_named_with_the_command_that_mends_it(session, run):
    store = AsyncStore(session, run, 1)
    await store.write_step(observation("torn", 0))
    [(text,)] = session.execute("SELECT observation FROM steps WHERE run = %s AND trajectory_id = 'torn'", (run,))
    session.execute(
        "UPDATE steps SET observation = %s WHERE run = %s AND trajectory_id = 'torn' AND step = 0",
        (text[: len(text) // 2], run),
    )
    sync = SyncStore(session, run, 1)
    for read in (lambda: store.steps("torn"), lambda: asyncio.to_thread(sync.steps_many, ["torn"])):
        with pytest.raises(
            DamagedRow, match=f"trajectory torn of run {run} .*`dart-streams store rebuild --run {run}`"
        ):
            await read()


@pytest.mark.parametrize("prepared", [False, True])
async def test_a_dropped_table_is_named_with_the_command_that_restores_it(keyspace, run, prepared):
    create_schema(keyspace)
    own = connect(keyspace)
    try:
        store, sync = AsyncStore(own, run, 1), SyncStore(own, run, 1)
        if prepared:
            await store.write_step(observation("kept", 0))
            await asyncio.to_thread(sync.steps_many, ["kept"])
        own.execute("DROP TABLE steps", timeout=60)
        for use in (
            lambda: store.write_step(observation("lost", 0)),
            lambda: asyncio.to_thread(sync.steps_many, ["lost"]),
        ):
            with pytest.raises(TableGone, match=rf"table steps is gone .*`dart-streams store rebuild --run {run}`"):
                await use()
    finally:
        own.cluster.shutdown()


async def test_a_blob_that_is_asked_for_before_it_is_written_is_waited_for(session, run):
    data = os.urandom(100)
    ref = ref_of(data, "image/png", 1, 1)
    reading = asyncio.create_task(AsyncStore(session, run, 1).get_blob(ref, patience_s=BOUND_S))
    done, _ = await asyncio.wait({reading}, timeout=0.05)
    assert not done
    await AsyncStore(session, run, 1).put_blob(data, "image/png", 1, 1)
    assert await reading == data


async def test_many_blobs_are_read_at_once(session, run):
    store = AsyncStore(session, run, 0)
    datas = [os.urandom(100) for _ in range(300)]
    refs = await asyncio.gather(*(store.put_blob(data, "image/png", 1, 1) for data in datas))
    blobs = SyncStore(session, run, 1).get_blobs([*refs, *refs])
    assert [blobs[ref.sha256] for ref in refs] == datas


async def test_steps_come_back_in_order_and_a_repeated_write_changes_nothing(session, run):
    store = AsyncStore(session, run, 1)
    written = [observation("t", step) for step in range(30)]
    await asyncio.gather(*(store.write_step(o) for o in [*reversed(written), *written]))
    assert await store.steps("t") == written
    assert SyncStore(session, run, 1).steps_many(["t", "unknown"]) == {"t": written, "unknown": []}


async def test_runs_do_not_see_each_others_rows(session, run):
    await AsyncStore(session, run, 1).write_step(observation("t", 0))
    assert await AsyncStore(session, f"{run}-other", 1).steps("t") == []


@pytest.mark.parametrize("actions", [1, 200, 20_000])
async def test_trajectories_are_found_by_id_and_by_task_the_oldest_first(session, run, actions):
    store = AsyncStore(session, run, 1)
    late, early, other = trajectory("a", 20), trajectory("b", 10), trajectory("c", 5, "simulated/box#2")
    late = msgspec.structs.replace(late, steps=actions, step_entropies=[0.123456789] * actions)
    for event in (late, early, other, late):
        await store.write_trajectory(event)
    assert [trajectories_in(store, "trajectories", "id", name) for name in "acx"] == [[late], [other], []]
    assert trajectories_in(store, "trajectories_by_task", "task_id", "simulated/box#1") == [early, late]


def row_of(version: int, epoch: int) -> dict[str, Any]:
    row = {"version": version, "epoch": epoch, "group_ids": [f"e{epoch}"], "trajectory_ids": [], "metrics": {}}
    return row | {"at_ms": 1}


def test_optimizer_steps_are_kept_in_order(store):
    row = row_of(1, store.claim_epoch("tiny")) | {"metrics": {"loss": 0.5}}
    for step in (2, 1, 1):
        assert store.write_trained_by_claim("tiny", 1, step, row | {"version": step})
    assert trained_rows(store.session, store.run) == [row | {"train_step": 1}, row | {"train_step": 2, "version": 2}]


def test_epochs_strictly_increase_also_when_trainers_start_together(store):
    with ThreadPoolExecutor(4) as pool:
        claimed = list(pool.map(lambda _: store.claim_epoch("tiny"), range(8)))
    assert len(set(claimed)) == 8
    assert store.claim_epoch("tiny") > max(claimed)
    assert store.claim_epoch("another") == 1
    assert store.claim_epoch("another", beyond=7) == 8
    assert store.claim_epoch("another", beyond=3) == 9
    assert store.claim_epoch("third", beyond=4) == 5, "also where the table was emptied"


def test_a_step_of_a_fenced_trainer_is_refused(store):
    first = store.claim_epoch("tiny")
    assert store.write_trained_by_claim("tiny", first, 1, row_of(1, first))
    second = store.claim_epoch("tiny")
    assert store.write_trained_by_claim("tiny", second, 2, row_of(2, second))
    for step in (1, 2, 3):
        assert not store.write_trained_by_claim("tiny", first, step, row_of(9, first))
    assert store.write_trained_by_claim("tiny", second, 1, row_of(1, second)), "its own, once more"
    assert [(row["train_step"], row["version"], row["epoch"]) for row in trained_rows(store.session, store.run)] == [
        (1, 1, 2),
        (2, 2, 2),
    ]
    assert store.claimed_epoch("tiny") == second


def test_a_claim_of_another_model_fences_nobody(store):
    for _ in range(3):
        ours = store.claim_epoch("tiny")
    assert (store.claimed_epoch("another"), store.claim_epoch("another"), store.claimed_epoch("another")) == (0, 1, 1)
    assert store.write_trained_by_claim("tiny", ours, 1, row_of(1, ours))


@pytest.mark.parametrize("left", [None, 1])
def test_no_epoch_is_given_twice_after_the_claims_were_emptied(store, session, run, left):
    given = [store.claim_epoch("tiny") for _ in range(3)]
    session.execute("DELETE FROM epochs WHERE run = %s AND model_id = 'tiny'", (run,))
    if left is not None:
        session.execute("INSERT INTO epochs (run, model_id, epoch) VALUES (%s, 'tiny', %s)", (run, left))
    newest = store.claim_epoch("tiny")
    assert newest > max(given)
    assert not store.write_trained_by_claim("tiny", max(given), 1, row_of(1, 3))
    assert store.write_trained_by_claim("tiny", newest, 1, row_of(1, newest))
    assert store.claimed_epoch("tiny") == newest


def test_only_an_unfenced_trainer_goes_on_after_a_rebuild(store, session, run):
    older, newer = store.claim_epoch("tiny"), store.claim_epoch("tiny")
    session.execute("DELETE FROM trained WHERE run = %s", (run,))
    assert not store.write_trained_by_claim("tiny", older, 1, row_of(1, older))
    assert store.write_trained_by_claim("tiny", newer, 1, row_of(1, newer))
    assert not store.write_trained_by_claim("tiny", older, 1, row_of(1, older))
    assert [row["epoch"] for row in trained_rows(store.session, store.run)] == [newer]


def test_claims_are_no_rows_of_the_projection_and_go_with_the_run(store, session, run):
    store.claim_epoch("tiny")
    assert trained_rows(store.session, store.run) == []
    assert [row.table for row in projection.stored_rows(session, run)] == ["epochs"]
    projection.wipe(session, run)
    assert store.claim_epoch("tiny") == 1


def test_a_schema_that_is_there_is_applied_again_without_harm(services, store):
    assert store.write_trained_by_claim("tiny", store.claim_epoch("tiny"), 1, row_of(1, 1))
    create_schema(services.config().store)
    assert len(trained_rows(store.session, store.run)) == 1


def test_a_process_makes_no_schema_and_names_the_command_that_does(keyspace, monkeypatch):
    monkeypatch.setattr(sessions, "CONNECT_TIMEOUT_S", BOUND_S)
    hasty = msgspec.structs.replace(keyspace, wait_s=0.5)
    with pytest.raises(
        ServiceUnavailable, match=f"{keyspace.keyspace} does not exist after .*dart-streams store apply"
    ):
        connect(hasty)
    create_schema(keyspace)
    first = connect(keyspace)
    first.execute("DROP TABLE trained", timeout=60)
    first.cluster.shutdown()
    with pytest.raises(ServiceUnavailable, match="lacks the tables trained after"):
        connect(hasty)
    create_schema(keyspace)
    second = connect(keyspace)
    assert trained_rows(second, "run") == []
    second.cluster.shutdown()


def test_processes_that_start_before_the_schema_wait_for_it(keyspace):
    patient = msgspec.structs.replace(keyspace, wait_s=BOUND_S)
    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(connect, patient) for _ in range(5)]
        pool.submit(create_schema, keyspace).result()
        sessions = [connecting.result() for connecting in waiting]
    assert [trained_rows(session, "run") for session in sessions] == [[]] * 5
    for session in sessions:
        session.cluster.shutdown()


def test_a_new_keyspace_counts_its_copies_by_datacenter(keyspace, session):
    create_schema(msgspec.structs.replace(keyspace, replication=1, local_dc="datacenter1"))
    query = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
    [[replication]] = session.execute(query, (keyspace.keyspace,))
    assert dict(replication) == {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "datacenter1": "1"}
    with pytest.raises(ConfigError, match=r"ALTER KEYSPACE .*'datacenter1': 3"):
        connect(msgspec.structs.replace(keyspace, replication=3))


def test_more_copies_than_nodes_make_no_keyspace(keyspace, session):
    with pytest.raises(ConfigError, match="datacenter1 has 1 of as many nodes"):
        create_schema(msgspec.structs.replace(keyspace, replication=3))
    session.cluster.refresh_schema_metadata()
    assert keyspace.keyspace not in session.cluster.metadata.keyspaces


def test_a_datacenter_that_is_not_there_is_named_with_those_that_are(keyspace):
    with pytest.raises(ConfigError, match=r"store\.local_dc is 'elsewhere', and the nodes are in datacenter1"):
        create_schema(msgspec.structs.replace(keyspace, local_dc="elsewhere"))


def test_a_database_that_is_not_there_is_named_after_the_wait():
    port = free_port()
    began = time.monotonic()
    with pytest.raises(ServiceUnavailable, match=f"port {port} after 1 s.*dart-streams up"):
        connect(Store(port=port, wait_s=1.0))
    assert time.monotonic() - began >= 1.0


async def test_a_database_that_accepts_and_says_nothing_is_named_after_the_wait():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(ServiceUnavailable, match=f"port {port}"):
                await connect_async(Store(port=port, wait_s=1.0))


async def test_a_database_that_goes_away_is_waited_for_and_then_named(services, run):
    session = connect(services.config().store)
    store = AsyncStore(session, run, 1)
    await store.write_step(observation("t", 0))
    session.cluster.shutdown()
    store.wait_s = 0.5
    with pytest.raises(ServiceUnavailable, match=r"0\.5 s.*doctor"):
        await store.write_step(observation("t", 1))


def test_the_tables_can_be_made_ahead_of_all_processes(services, session, keyspace, tmp_path):
    file = tmp_path / "ahead.toml"
    folder.write_toml(file, msgspec.structs.replace(services.config(), store=keyspace))
    for _ in range(2):
        done = invoke("store", "apply", "--config", file)
        assert done.exit_code == 0, done.output
    tables = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
    names = {name for (name,) in session.execute(tables, (keyspace.keyspace,))}
    assert {"steps", "trajectories", "blobs", "trained"} <= names
