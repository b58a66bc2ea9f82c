"""``dart-streams runs``: two runs on a real broker and store, of which one is removed; and one that is ended."""

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import dart_streams
from console.launch import process_registry, run_list, run_removal
from console.launch.process_registry import ProcessIdentity, ProcessRegistry
from console.repair import projection
from console.runs import run_folder
from console.runs.run_folder import PhaseLog, RunFolder, RunPhase
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher
from dart_streams.bus.sync_clients import create_consumer
from dart_streams.errors import UserError
from dart_streams.store import AsyncStore, MissingBlob, SyncStore, connect
from tests import events
from tests.command_line import invoke, invoke_json
from tests.fork_server import PROGRAM, Forked
from tests.waiting import wait_until
from topics import trajectories

TASKS = Path(__file__).parents[2] / "deploy/config/tasks.toml"
SUPERVISOR = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: (time.sleep(0.5), exit(0)))
print(flush=True)
time.sleep(600)
"""
"""A program that ends half a second after SIGINT, as a run drains its episodes."""


KEYSPACE = {"keyspace": f"runs_{uuid.uuid4().hex[:8]}"}
"""A keyspace of these tests alone: other tests leave damaged rows."""


@pytest.fixture(scope="module")
def session(services):
    session = connect(services.config(store=KEYSPACE).store)
    yield session
    session.cluster.shutdown()


def make_run(services, state: Path, name: str) -> RunFolder:
    """Return a run's folder whose topics exist."""
    config = services.config(store=KEYSPACE)
    run = msgspec.structs.replace(config.run, id=name, state_dir=str(state))
    config = msgspec.structs.replace(config, run=run)
    folder = run_folder.folder_of(config, name)
    run_folder.prepare(folder, config, TASKS)
    folder.write_journal(PhaseLog(phases=(RunPhase("circle", 0, 120_000),), outcome="complete"))
    (folder.path / "weights").mkdir()
    (folder.path / "weights/big").write_bytes(bytes(3_000_000))
    admin.apply_all(folder.config().bus)
    return folder


async def add_steps(session, folder: RunFolder, *screens: bytes) -> list[str]:
    """Store an observation for each screen, and the screens; return their digests."""
    run = folder.config().bus.run
    store = AsyncStore(session, run, 1)
    digests = []
    for number, screen in enumerate(screens):
        ref = await store.put_blob(screen, "image/png", 1, 1)
        await store.write_step(events.observation(number, trajectory_id=f"t-{run}", screenshot=ref))
        digests.append(ref.sha256)
    return digests


def topics_of(folder: RunFolder) -> list[str]:
    bus = folder.config().bus
    with admin.connect(bus) as client:
        return run_removal.topics_of(client, bus)


@pytest.fixture
def runs(services, session, tmp_path: Path):
    """Two runs that share a screen: the folders, the digest of each one's own screen, and that of the shared one."""
    names = sorted(f"r{uuid.uuid4().hex[:8]}" for _ in range(2))
    folders = [make_run(services, tmp_path, name) for name in names]
    shared = uuid.uuid4().bytes
    digests = [asyncio.run(add_steps(session, folder, uuid.uuid4().bytes, shared)) for folder in folders]
    yield folders, [own for own, _ in digests], digests[0][1]
    for name in names:
        bus = msgspec.structs.replace(services.config().bus, prefix=f"dart.{name}.")
        with admin.connect(bus) as client:
            client.delete_topics(run_removal.topics_of(client, bus), raise_errors=False)


def test_runs_are_listed_with_their_state_and_size(runs, tmp_path: Path):
    (first, second), _, _ = runs
    rows = invoke_json("runs", "list", "--state", tmp_path)
    assert [row["run"] for row in rows] == [first.id, second.id]
    assert {(row["state"], row["minutes"], row["mb"]) for row in rows} == {("complete", 2.0, 3)}
    assert first.id in invoke("runs", "list", "--state", tmp_path).stdout


def test_a_run_is_opened_from_its_broker_and_its_store(runs):
    (first, second), (own, _), _ = runs
    bus = first.config().bus

    async def announce() -> None:
        async with Publisher(bus, "test") as publisher:
            for _ in range(2):  # the second is a repeat
                await publisher.publish(trajectories.TOPIC, events.trajectory("t1"))

    asyncio.run(announce())
    run = dart_streams.open(first.path)
    assert [row["trajectory_id"] for row in run.episodes] == ["t1"]
    assert list(run.actions) == list(dart_streams.open(second.id, first.path.parents[1]).episodes) == []
    assert run.screenshot(own)
    with pytest.raises(UserError, match="not in the store"):
        run.screenshot("0" * 64)


def test_nothing_is_removed_before_yes(runs, session, tmp_path: Path):
    (first, _), _, _ = runs
    before = topics_of(first)
    said = invoke("runs", "rm", first.id, "--state", tmp_path, "--screenshots")
    assert said.exit_code == 0 and "nothing was removed" in said.output
    assert topics_of(first) == before != []
    assert len(list(projection.all_rows(session, first.config().bus.run))) == 2
    assert first.path.is_dir()


def test_a_removed_run_leaves_nothing_and_another_keeps_all(runs, session, tmp_path: Path):
    (first, second), (own, kept), shared = runs
    bus, arguments = first.config().bus, ("runs", "rm", first.id, "--state", tmp_path, "--screenshots")
    reader = create_consumer(bus, "reader", group_id=f"{bus.prefix}reader")
    reader.subscribe([f"{bus.prefix}observations"])
    wait_until(lambda: reader.poll(timeout_ms=500) or reader.assignment(), "a member of the group")
    others = topics_of(second)
    found = {row["kind"]: row["count"] for row in invoke_json(*arguments)}
    assert found == {"topics": len(topics_of(first)), "consumer groups": 1, "rows": 2, "screenshots": 1, "folder": 1}
    reader.close()
    done = invoke(*arguments, "--yes")
    assert done.exit_code == 0, done.output
    assert topics_of(second) == others
    with admin.connect(bus) as client:
        wait_until(
            lambda: not run_removal.topics_of(client, bus) + run_removal.groups_of(client, bus), "the end of all"
        )
    assert list(projection.all_rows(session, bus.run)) == []
    assert len(list(projection.all_rows(session, second.config().bus.run))) == 2
    store = SyncStore(session, bus.run, 0)
    with pytest.raises(MissingBlob):
        store.blob_named(own)
    assert store.blob_named(kept) and store.blob_named(shared)
    assert not first.path.exists() and second.path.is_dir()


def test_a_damaged_step_of_another_run_keeps_all_screenshots(runs, session, tmp_path: Path):
    (first, second), (own, _), _ = runs
    insert = "INSERT INTO steps (run, trajectory_id, step, observation) VALUES (%s, 't', 0, '{')"
    session.execute(insert, (second.config().bus.run,))
    refused = invoke("runs", "rm", first.id, "--state", tmp_path, "--screenshots", "--yes")
    assert f"a step of run {second.config().bus.run} in the store is damaged" in str(refused.exception)
    assert first.path.is_dir() and SyncStore(session, first.config().bus.run, 0).blob_named(own)
    assert invoke("runs", "rm", first.id, "--state", tmp_path, "--yes").exit_code == 0
    session.execute("DELETE FROM steps WHERE run = %s AND trajectory_id = 't'", (second.config().bus.run,))


def test_latest_names_a_run_that_is_there(runs, tmp_path: Path):
    (first, second), _, _ = runs
    newest = run_folder.find(str(tmp_path), "latest")
    run_removal.forget_folder(newest.path)
    left = first if newest.id == second.id else second
    assert run_folder.find(str(tmp_path), "latest").id == left.id
    run_removal.forget_folder(left.path)
    assert not (tmp_path / "runs/latest").is_symlink()


@pytest.fixture
def supervisor(runs) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is registered as the first run's supervisor."""
    (first, _), _, _ = runs
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE)
    process.stdout.readline()
    registry = ProcessRegistry(ProcessIdentity.of("supervisor", process.pid))
    (first.path / run_list.REGISTRY).write_bytes(msgspec.json.encode(registry))
    yield process
    process.kill()
    process.wait()


def test_a_run_that_is_under_way_is_ended_and_not_removed(runs, supervisor, tmp_path: Path):
    (first, second), _, _ = runs
    assert run_list.row_of(first).state == "running"
    refused = invoke("runs", "rm", first.id, "--state", tmp_path, "--yes")
    assert isinstance(refused.exception, UserError) and "runs stop" in str(refused.exception)
    screens = invoke("runs", "rm", second.id, "--state", tmp_path, "--yes", "--screenshots")
    assert isinstance(screens.exception, UserError), "a worker of the first may believe that a screen is stored"
    assert second.path.is_dir()
    done = invoke("runs", "stop", first.id, "--state", tmp_path, "--wait", 120)
    assert done.exit_code == 0, done.output
    assert supervisor.wait(60) == 0
    assert not process_registry.lives(first.path, run_list.registry_of(first))
    again = invoke("runs", "stop", first.id, "--state", tmp_path)
    assert "nothing to stop" in str(again.exception)


def test_logs_name_their_process_and_follow(runs, tmp_path: Path):
    (first, _), _, _ = runs
    logs = first.path / "logs"
    logs.mkdir()
    (logs / "trainer.log").write_text("".join(f"line {number}\n" for number in range(50)))
    (logs / "env-0.log").write_text("begun\n")
    assert invoke("runs", "logs", first.id, "trainer", "--state", tmp_path, "-n", 2).stdout == "line 48\nline 49\n"
    assert invoke("runs", "logs", first.id, "--state", tmp_path, "-n", 1).stdout == "env-0: begun\ntrainer: line 49\n"
    unknown = invoke("runs", "logs", first.id, "curator-0", "--state", tmp_path)
    assert "there are env-0, trainer" in str(unknown.exception)
    command = [PROGRAM, "runs", "logs", first.id, "trainer", "--state", tmp_path, "-f", "-n", "1"]
    with Forked(command, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout.readline() == "line 49\n"
        with (logs / "trainer.log").open("a") as log:
            log.write("new\n")
        assert tail.stdout.readline() == "new\n"
        tail.terminate()
