"""The environment worker on a real broker and database, with the simulated environment and scripted answers."""

import asyncio
import contextlib
import json
import signal
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from cassandra.cluster import Session
from kafka import OffsetAndMetadata

from console.launch.services.daemon import free_port
from dart_streams.bus import admin, clients, dead_letters
from dart_streams.bus.codec import find_header
from dart_streams.config import Config
from dart_streams.errors import ServiceUnavailable
from dart_streams.store import AsyncStore, MissingBlob, SyncStore, connect
from tests.integration import env_harness
from tests.topic_reader import read_dead_letters
from tests.waiting import wait_until
from tests.worker_runs import exit_code_of, throw_out
from topics import actions, rollout_orders
from topics.action_requests import ActionRequest
from workers.env import episode_runner
from workers.runtime.death_counts import DeathNote, read_note


@pytest.fixture
def configure(services, tmp_path: Path, monkeypatch) -> Callable[..., Config]:
    monkeypatch.setattr(clients, "HEARTBEAT_INTERVAL_MS", 200)
    return partial(env_harness.played_config, services, tmp_path)


def committed(config: Config) -> list[OffsetAndMetadata]:
    """Return what the workers have committed, by partition."""
    with admin.connect(config.bus) as client:
        group = f"{config.bus.prefix}env"
        return list(client.list_group_offsets({group: None})[group].values())


async def test_an_episode_is_published_step_by_step_with_stored_screenshots(configure):
    config = configure()
    harness = await env_harness.played(config, env_harness.order(0), env_harness.order(1, "simulated/steps-3#4"))
    assert [harness.outcome(n) for n in (0, 1)] == ["success", "success"]
    [first], [second] = harness.ended["o0"], harness.ended["o1"]
    assert (first.step, second.step, second.end.reward) == (1, 3, 1.0)
    session = connect(config.store)
    store = SyncStore(session, config.bus.run, 1)
    for trajectory in harness.observed.values():
        assert [observation.step for observation in trajectory] == list(range(len(trajectory)))
        assert all(observation.order == trajectory[0].order for observation in trajectory)
        for observation in trajectory:
            assert store.get_blobs([observation.screenshot])[observation.screenshot.sha256].startswith(b"\x89PNG")
        for number, observation in enumerate(trajectory[1:]):
            assert observation.taken.request_id == f"{observation.trajectory_id}/{number}/0"
            assert observation.taken.action == observation.taken.text
            assert observation.taken.tokens == [1, 2]
    session.cluster.shutdown()


async def test_every_way_in_which_a_policy_can_end_an_episode(configure, monkeypatch):
    monkeypatch.setattr(episode_runner, "LOOP_LIMIT", 3)
    config = configure()
    answers = {
        0: "I am a teapot",
        1: "Action: call_user()",
        2: "Action: finished(content='')",
        3: "Action: wait()",
        4: "Action: click(start_box='(0,0)')",
    }
    cut = env_harness.order(5, "simulated/steps-3#5", max_steps=2)
    harness = await env_harness.played(
        config,
        *(env_harness.order(n) for n in answers),
        cut,
        answer=lambda request: answers.get(env_harness.number_of(request)) or env_harness.solve(request),
    )
    ends = {n: harness.ended[f"o{n}"][0] for n in range(6)}
    assert [ends[n].end.kind for n in range(6)] == ["invalid_action", *["failure"] * 4, "truncated"]
    assert {last.end.reward for last in ends.values()} == {0.0}
    assert (ends[1].end.reason, ends[3].end.reason, ends[5].end.reason) == ("call_user", "loop", "step limit")
    assert (ends[0].taken.text, ends[0].taken.action, ends[3].step) == ("I am a teapot", None, 3)


class ReadingHarness(env_harness.Harness):
    """Reads the newest screenshot of each request, as a rollout worker does; a missing one is an error."""

    def __init__(self, config: Config, session: Session) -> None:
        super().__init__(config, env_harness.solve)
        self.screens = AsyncStore(session, config.bus.run, cache_mb=0)

    async def reply(self, request: ActionRequest) -> None:
        ref = next(turn.image for turn in reversed(request.turns) if turn.image is not None)
        try:
            await self.screens.get_blob(ref, patience_s=1.0)
        except MissingBlob as missing:
            await self.respond(request, "", str(missing))
        else:
            await super().reply(request)


async def test_a_damaged_screenshot_is_written_again_after_an_answer_that_failed(configure, monkeypatch):
    """The worker keeps in mind which ones it has written: without that, each episode with this screen would fail."""
    monkeypatch.setattr(episode_runner, "ERROR_PAUSE_S", 0.01)
    config = configure()
    session = connect(config.store)
    async with env_harness.serving(ReadingHarness(config, session)) as harness, env_harness.worker(config):
        await harness.order(env_harness.order(0))
        await harness.until(lambda: "o0" in harness.ended)
        shown = {
            step.screenshot for steps in harness.observed.values() for step in steps if step.screenshot is not None
        }
        for ref in shown:
            session.execute("UPDATE blobs SET data = %s WHERE sha256 = %s AND chunk = 0", (bytes(ref.size), ref.sha256))
        for number in (1, 2):
            await harness.order(env_harness.order(number))
            await harness.until(lambda number=number: f"o{number}" in harness.ended)
    session.cluster.shutdown()
    assert [harness.outcome(number) for number in range(3)] == ["success", "policy_error", "success"]
    assert "the stored bytes have another digest" in harness.ended["o1"][0].end.reason


async def test_no_reply_is_at_last_a_policy_error(configure, monkeypatch):
    monkeypatch.setattr(episode_runner, "REQUEST_ATTEMPTS", 2)
    config = configure(request_timeout_s=0.3)
    async with env_harness.harness_of(config, lambda request: None) as harness, env_harness.worker(config):
        await harness.order(env_harness.order(0))
        await harness.until(lambda: len(harness.ended) == 1)
    [last] = harness.ended["o0"]
    assert (last.end.kind, last.end.reward, last.taken) == ("policy_error", None, None)
    attempts = [f"{last.trajectory_id}/0/{attempt}" for attempt in (0, 1)]
    assert last.end.reason == f"2 attempts, the last: {attempts[1]}: no reply within 0.3 s"
    assert {request.request_id for request in harness.requests} <= {*attempts}  # If late before it is sent, less.


async def test_a_request_without_a_reply_is_repeated_until_one_comes(configure, monkeypatch):
    """Many attempts make one reply timely, however busy the machine is."""
    monkeypatch.setattr(episode_runner, "REQUEST_ATTEMPTS", 1000)
    config = configure(request_timeout_s=0.3)

    def answer(request: ActionRequest) -> str | None:
        return None if request.request_id.endswith("/0/0") else env_harness.solve(request)

    harness = await env_harness.played(config, env_harness.order(0), answer=answer)
    [last] = harness.ended["o0"]
    assert (last.end.kind, last.end.reward) == ("success", 1.0)
    attempts = [int(request.request_id.removeprefix(f"{last.trajectory_id}/0/")) for request in harness.requests]
    assert attempts == sorted({*attempts})  # One that is late before it is sent is not there.
    assert int(last.taken.request_id.rpartition("/")[2]) in {*attempts} - {0}


async def test_a_hanging_environment_ends_its_episode_only_and_the_slot_heals(configure):
    config = configure(slots=1, simulated={"hang_rate": 0.2, "call_timeout_s": 0.1})
    harness = await env_harness.played(config, *(env_harness.order(n) for n in range(20)))
    outcomes = {harness.outcome(n) for n in range(20)}
    assert outcomes == {"success", "env_error"}
    assert all(ends[0].end.reward is None for ends in harness.ended.values() if ends[0].end.kind == "env_error")


async def test_an_episode_past_its_bound_is_a_fault(configure, monkeypatch):
    """The bound is over once there is a request: a clock could end it before the first screen."""
    bound_s, bounds, run = 1000.0, [], episode_runner.EpisodeRun.run
    config = configure(episode_timeout_s=bound_s)
    monkeypatch.setattr(episode_runner.EpisodeRun, "run", lambda each: bounds.append(each.limit) or run(each))
    harness = await env_harness.played(
        config, env_harness.order(0), answer=lambda _: bounds[0].reschedule(bounds[0].when() - bound_s)
    )
    [last] = harness.ended["o0"]
    assert (last.end.kind, last.end.reward) == ("policy_error", None)
    assert last.end.reason == "straggler: waited for an action"


async def test_orders_that_cannot_be_played_are_dead_letters(configure):
    config = configure()
    async with env_harness.harness_of(config) as harness, env_harness.worker(config):
        await harness.publisher.send(rollout_orders.TOPIC.name, b"k", b"{not json", [("schema", b"rollout-orders/1")])
        await harness.order(env_harness.order(0, "simulated/no-such-page#1"), env_harness.order(1))
        await harness.until(lambda: len(harness.ended) == 2)
        letters = await read_dead_letters(config, rollout_orders.TOPIC, 2)
    assert harness.outcome(1) == "success"
    [refused] = harness.ended["o0"]
    assert (refused.end.kind, refused.step, refused.screenshot) == ("env_error", 0, None)
    assert "no-such-page" in refused.end.reason
    broken = next(letter for letter in letters if letter.key == b"k")
    assert broken.value == b"{not json"
    assert find_header(broken.headers, "schema") == b"rollout-orders/1"
    assert b"not a rollout-orders/1" in find_header(broken.headers, dead_letters.ERROR)
    assert sum(offset.offset for offset in committed(config)) == 3


async def test_two_hosts_share_the_orders_and_one_partition_of_replies(configure, monkeypatch):
    monkeypatch.setattr(episode_runner, "REQUEST_ATTEMPTS", 1000)
    config = configure(slots=2, request_timeout_s=0.5)
    hosts = ("env-0", next(n for n in map("env-{}".format, range(1, 99)) if crc(n) == crc("env-0")))

    def when_both_play(request: ActionRequest) -> str | None:
        return env_harness.solve(request) if {t[0].env_host for t in harness.observed.values()} == set(hosts) else None

    harness = env_harness.Harness(config, when_both_play)
    async with env_harness.serving(harness), env_harness.worker(config, hosts[0]), env_harness.worker(config, hosts[1]):
        await harness.order(*(env_harness.order(n, f"simulated/box#{n}") for n in range(24)))
        await harness.until(lambda: len(harness.ended) == 24)
    assert {r.reply_partition for r in harness.requests} == {crc("env-0")}
    assert {harness.outcome(n).split("/")[0] for n in range(24)} == {"success"}


def crc(name: str) -> int:
    return zlib.crc32(name.encode()) % actions.TOPIC.partitions


async def test_orders_of_a_host_that_is_killed_are_played_by_another(configure, tmp_path):
    config = configure()
    held = {"silent": True}
    async with env_harness.harness_of(
        config, lambda request: None if held["silent"] else env_harness.solve(request)
    ) as harness:
        with env_harness.process(config, tmp_path) as first:
            await harness.order(*(env_harness.order(n) for n in range(4)))
            await harness.until(lambda: len(harness.requests) == 4)
            first.kill()
        await asyncio.to_thread(throw_out, config, "env", "env-0")
        held["silent"] = False
        async with env_harness.worker(config, "env-1"):
            await harness.until(lambda: len(harness.ended) == 4)
    assert {harness.outcome(n) for n in range(4)} == {"success"}
    assert {ends[0].env_host for ends in harness.ended.values()} == {"env-1"}
    assert sum(offset.offset for offset in committed(config)) == 4


async def test_sigterm_drains_and_cancels_what_does_not_end_in_time(configure, tmp_path):
    config = configure()
    held = {"silent": True}

    def answer(request: ActionRequest) -> str | None:
        return None if held["silent"] and env_harness.number_of(request) == 1 else env_harness.solve(request)

    async with env_harness.harness_of(config, answer) as harness:
        with env_harness.process(config, tmp_path) as first:
            await harness.order(env_harness.order(0), env_harness.order(1))
            await harness.until(lambda: len(harness.ended) == 1 and len(harness.requests) == 2)
            first.send_signal(signal.SIGTERM)
            assert await exit_code_of(first) == 0
            assert "drain cut short" in first.stderr.read()
        await harness.until(lambda: len(harness.ended) == 2)
        assert (harness.outcome(0), harness.outcome(1)) == ("success", "cancelled")
        held["silent"] = False
        async with env_harness.worker(config, "env-1"):
            await harness.until(lambda: len(harness.ended["o1"]) == 2)
    assert harness.outcome(1) == "cancelled/success"
    assert len(harness.ended["o0"]) == 1


async def test_an_order_under_way_is_not_started_again_by_a_rebalance(configure):
    config = configure()
    async with env_harness.harness_of(config, lambda request: None) as harness, env_harness.worker(config, "env-0"):
        await harness.order(*(env_harness.order(n) for n in range(4)))
        await harness.until(lambda: len(harness.requests) == 4)
        async with env_harness.worker(config, "env-1"):
            await harness.until(lambda: len(harness.observed) >= 5 or len(harness.requests) >= 5)
        harness.answer = env_harness.solve
        for request in list(harness.requests):
            await harness.reply(request)
        await harness.until(lambda: len(harness.ended) == 4)
    started = defaultdict(list)
    for trajectory in harness.observed.values():
        started[trajectory[0].env_host].append(trajectory[0].order.order_id)
    assert sorted(started["env-0"]) == ["o0", "o1", "o2", "o3"]


async def test_services_that_come_up_late_are_used(configure):
    config = configure()
    replace, ports = msgspec.structs.replace, (free_port(), free_port())
    bus, store = replace(config.bus, servers=f"127.0.0.1:{ports[0]}"), replace(config.store, port=ports[1])
    late = replace(config, bus=bus, store=store)
    async with env_harness.harness_of(config) as harness, env_harness.worker(late):
        await harness.order(env_harness.order(0))
        broker = int(config.bus.servers.rpartition(":")[2])
        async with forwarder(ports[0], broker), forwarder(ports[1], config.store.port):
            await harness.until(lambda: len(harness.ended) == 1)
    assert harness.outcome(0) == "success"


@contextlib.asynccontextmanager
async def forwarder(port: int, target: int) -> AsyncIterator[None]:
    """Forward connections to ``port`` to ``target``; they live on when the block ends."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


async def test_a_worker_that_is_still_waiting_for_a_service_stops_at_once(configure, tmp_path):
    config = configure()
    never = msgspec.structs.replace(config.bus, servers=f"127.0.0.1:{free_port()}", wait_s=100 * env_harness.BOUND_S)
    config = msgspec.structs.replace(config, bus=never)
    with env_harness.process(config, tmp_path) as running:
        line = await asyncio.to_thread(running.stderr.readline)
        while "waiting for the broker" not in line:
            line = await asyncio.to_thread(running.stderr.readline)
        running.send_signal(signal.SIGTERM)
        assert await exit_code_of(running) == 0


async def test_topics_that_were_not_applied_are_named(configure, monkeypatch):
    monkeypatch.setattr(clients, "start_within", lambda client, bus: client.start())  # Topics alone have a second.
    config = configure()
    replace = msgspec.structs.replace
    config = replace(config, bus=replace(config.bus, prefix="nothing.here.", wait_s=1.0))
    with pytest.raises(ServiceUnavailable, match=r"nothing\.here\..*topics apply"):
        async with env_harness.worker(config) as running:
            await running


async def test_an_order_that_ends_its_worker_is_set_aside_after_three_deaths(configure, tmp_path):
    """The environment of one task ends the process, as a crash in a C library does: nothing can be caught."""
    config = configure(slots=3)
    disturbed = json.dumps({"lethal": "simulated/box#7", "healthy_s": 0.0})
    codes = []
    async with env_harness.harness_of(config) as harness:
        await harness.order(
            env_harness.order(0),
            env_harness.order(1, "simulated/box#7"),
            *(env_harness.order(number) for number in range(2, 6)),
        )
        while not harness.ended.keys() >= {"o1"}:
            assert len(codes) < 6, "the order is delivered again and again"
            with env_harness.process(config, tmp_path, log=tmp_path / "env.log", disturbed=disturbed) as running:
                ended = asyncio.create_task(exit_code_of(running))
                done = asyncio.create_task(harness.until(lambda: len(harness.ended) == 6))
                await asyncio.wait({ended, done}, return_when=asyncio.FIRST_COMPLETED)
                if not ended.done():
                    await harness.order(env_harness.order(6, "simulated/box#7", attempt=1))
                    await harness.until(lambda: "o6" in harness.ended)
                    running.send_signal(signal.SIGTERM)
                codes.append(await ended)
                done.cancel()
            await asyncio.to_thread(throw_out, config, "env", "env-0")
    assert codes == [139, 139, 139, 0]
    # An order may be played again: a death comes between its end and the next commit of offsets.
    kinds = [{last.end.kind for last in harness.ended[f"o{number}"]} for number in range(6)]
    assert kinds == [{"success"}, {"env_error"}, *[{"success"}] * 4]
    [poison], [again] = harness.ended["o1"], harness.ended["o6"]
    assert poison.end.reason.startswith("set aside: orders of its task have ended their worker 3 times")
    assert "its orders have ended their worker again" in again.end.reason, "its task rests meanwhile"
    assert "order set aside" in (tmp_path / "env.log").read_text()


def note_of(config: Config) -> DeathNote:
    """Return the death note in the offset of the one partition that was played."""
    notes = (read_note(offset.metadata) for offset in committed(config))
    return next((note for note in notes if note != DeathNote()), DeathNote())


async def test_only_a_killed_worker_leaves_a_death_in_its_offsets(configure, tmp_path):
    config = configure(slots=1, simulated={"reset_ms": 100_000, "call_timeout_s": 100.0})
    async with env_harness.harness_of(config) as harness:
        await harness.order(env_harness.order(0))
        for end, left in ((signal.SIGTERM, DeathNote()), (signal.SIGKILL, DeathNote(begun=("simulated/box#0",)))):
            with env_harness.process(config, tmp_path) as running:
                await asyncio.to_thread(wait_until, lambda: note_of(config).begun)
                running.send_signal(end)
                await exit_code_of(running)
            assert await asyncio.to_thread(note_of, config) == left
