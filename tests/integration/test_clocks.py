"""Real workers behave the same with wall clocks that are ten minutes off and jump.

One that is hours off ends and names its clock, and the others go on.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from console.runs.run_folder import write_toml
from console.runs.run_follower import CIRCLE, RunFollower, follow_run
from console.runs.run_log import read_events
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher
from dart_streams.bus.clock_refusal import ClockRefused
from dart_streams.config import Config
from tests import events
from tests.integration import shifted_clock
from tests.integration.env_harness import QUICK
from tests.task_files import write_tasks
from topics import action_requests, rollout_orders, weights
from topics.rollout_orders import RolloutOrder

BOUND_S = 180.0
"""Six processes start side by side."""
OFF_S = 600


def orders(numbers: range) -> list[RolloutOrder]:
    return [events.rollout_order(f"o{number}", task_id=f"simulated/steps-3#{number}") for number in numbers]


@pytest.fixture
def configure(services: Any, tmp_path: Path) -> Callable[..., Config]:
    tasks = write_tasks(tmp_path, "steps-3")

    def make(env: dict[str, Any], rollout: dict[str, Any]) -> Config:
        return services.config(
            env={"backend": "simulated", "slots": 4, "simulated": QUICK, **env},
            rollout={"engine": "scripted", "scripted": {"success_rate": 1.0}, **rollout},
            tasks=tasks,
        )

    return make


class Fleet:
    """Workers as processes of their own, each with its clock."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "clocks.toml"
        write_toml(self.file, config)
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, kind: str, name: str, off_s: int, jump_s: int = 0) -> None:
        program = [sys.executable, shifted_clock.__file__, str(off_s), str(jump_s)]
        command = [*program, "worker", kind, "--config", str(self.file), "--id", name]
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        with (self.folder / f"{name}.log").open("w") as file:
            self.running[name] = subprocess.Popen(command, stderr=file, text=True, env=environment)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@contextlib.contextmanager
def fleet_of(config: Config, folder: Path) -> Iterator[Fleet]:
    fleet = Fleet(config, folder)
    try:
        yield fleet
    finally:
        for process in fleet.running.values():
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def watched(config: Config) -> AsyncIterator[tuple[Publisher, RunFollower]]:
    async with Publisher(config.bus, "test") as publisher, follow_run(config.bus, publisher, 300.0, CIRCLE) as follower:
        yield publisher, follower


def ended(numbers: range, follower: RunFollower) -> bool:
    """Return whether these episodes have ended."""
    known = {order.order_id for order, _ in follower.progress.orders.values()}
    return {f"o{number}" for number in numbers} <= known and len(follower.progress.ended) >= numbers.stop


def late(config: Config) -> list[str]:
    """Return the requests whose answer did not come in time: another attempt has another number."""
    asked = read_events(config.bus, [action_requests.TOPIC])
    return [one.request_id for one in asked if not one.request_id.endswith("/0")]


async def joined(config: Config, *groups: str) -> None:
    """Return when each of the groups has its two members: one that joins later has begun episodes played again."""
    names = [config.bus.prefix + group for group in groups]
    with admin.connect(config.bus) as client:
        async with asyncio.timeout(BOUND_S):
            while True:
                found = (await asyncio.to_thread(client.describe_groups, names)).values()
                if all(group["group_state"] == "Stable" and len(group["members"]) == 2 for group in found):
                    return
                await asyncio.sleep(0.1)


async def test_clocks_ten_minutes_off_that_jump_do_no_harm(configure, tmp_path):
    """No action is late for a clock."""
    config = configure({"request_timeout_s": 60.0}, {})
    with fleet_of(config, tmp_path) as fleet:
        async with watched(config) as (publisher, follower):
            await publisher.publish(weights.TOPIC, events.weight_version(0))
            fleet.start("rollout", "rollout-0", OFF_S)
            fleet.start("rollout", "rollout-1", -OFF_S, jump_s=2 * OFF_S)
            fleet.start("env", "env-0", -OFF_S, jump_s=2 * OFF_S)
            fleet.start("env", "env-1", OFF_S, jump_s=-2 * OFF_S)
            await follower.until(lambda _: len(follower.heartbeats.alive(10.0)) == 2, "both rollout workers", BOUND_S)
            await joined(config, "env", "rollout")
            for order in orders(range(12)):
                await publisher.publish(rollout_orders.TOPIC, order)
            await follower.until(lambda _: ended(range(12), follower), "12 episodes", BOUND_S)
            assert await asyncio.to_thread(late, config) == []

            for name in ("rollout-1", "env-0", "env-1"):
                fleet.running[name].send_signal(signal.SIGUSR1)
            for order in orders(range(12, 24)):
                await publisher.publish(rollout_orders.TOPIC, order)
            await follower.until(lambda _: ended(range(24), follower), "12 more after the jumps", BOUND_S)
            assert await asyncio.to_thread(late, config) == []

            fleet.running["rollout-0"].kill()
            await publisher.publish(weights.TOPIC, events.weight_version(1))
            await follower.until(
                lambda state: state.serving["rollout-1"].version == 1, "a switch past a dead worker", BOUND_S
            )
            # This process may have read the last heartbeat of the dead one up to a second later.
            await follower.until(
                lambda _: follower.heartbeats.alive(config.rollout.liveness_s) == {"rollout-1"}, "one worker", BOUND_S
            )
    for name in fleet.running:
        assert "requests dropped" not in fleet.log(name)


async def test_what_waits_longer_than_its_host_does_is_dropped_with_a_line(configure, tmp_path):
    """The engine takes 3 s for one request at a time, and the host, ten minutes ahead, gives each 4 s."""
    slow = {"max_in_flight": 1, "scripted": {"latency_ms": 3000.0}}
    config = configure({"request_timeout_s": 4.0}, slow)
    with fleet_of(config, tmp_path) as fleet:
        async with watched(config) as (publisher, follower):
            await publisher.publish(weights.TOPIC, events.weight_version(0))
            fleet.start("rollout", "rollout-0", -OFF_S)
            fleet.start("env", "env-0", OFF_S)
            await follower.until(lambda _: follower.heartbeats.alive(10.0), "a rollout worker", BOUND_S)
            for order in orders(range(8)):
                await publisher.publish(rollout_orders.TOPIC, order)
            await follower.until(lambda _: "requests dropped" in fleet.log("rollout-0"), "a line of it", BOUND_S)
    assert "env.request_timeout_s" in fleet.log("rollout-0")


async def test_a_worker_whose_clock_is_hours_off_ends_with_the_reason(configure, tmp_path):
    """One clock is behind from the start, one is ahead after a jump."""
    config = configure({"request_timeout_s": 60.0}, {})
    with fleet_of(config, tmp_path) as fleet:
        async with watched(config) as (publisher, follower):
            await publisher.publish(weights.TOPIC, events.weight_version(0))
            fleet.start("rollout", "rollout-0", 0)
            fleet.start("rollout", "rollout-1", 0, jump_s=2 * 3600)
            fleet.start("env", "env-0", 0)
            fleet.start("env", "env-1", -2 * 3600)
            await follower.until(lambda _: len(follower.heartbeats.alive(10.0)) == 2, "both rollout workers", BOUND_S)
            await joined(config, "env", "rollout")
            fleet.running["rollout-1"].send_signal(signal.SIGUSR1)
            for order in orders(range(12)):
                await publisher.publish(rollout_orders.TOPIC, order)
            await follower.until(lambda _: ended(range(12), follower), "12 episodes", BOUND_S)
        off = ("rollout-1", "env-1")  # Others may have played all episodes before these have ended.
        codes = [await asyncio.to_thread(fleet.running[name].wait, BOUND_S) for name in off]
    assert codes == [ClockRefused.exit_code] * 2
    for name, said in (("rollout-1", "2 h ahead of the broker's"), ("env-1", "2 h behind the broker's")):
        assert f"{said}; at most " in fleet.log(name)
        assert "Traceback" not in fleet.log(name)
