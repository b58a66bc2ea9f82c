"""Processes that stand still for longer than every bound of an episode: none of it is trained as a zero.

The policy solves every task here, so an episode that ends with a reward below 1 was judged by a clock.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dart_streams.config import Config
from dart_streams.console.runs.run_folder import write_toml
from dart_streams.deadline import Deadline
from tests import events
from tests.integration.test_env_worker import BOUND_S, TASKS, World, order, process, serving, solve, worker
from topics import weights
from topics.action_requests import ActionRequest

STILL_S = 6.0
"""Longer than a request's time-outs, all of them, and than an episode may take."""
BOUNDS = {"request_timeout_s": 1.0, "episode_timeout_s": 4.0}
AGAIN = 10_000
"""What is added to an order's number for its next order."""


@pytest.fixture
def config(services: Any, tmp_path: Path) -> Config:
    (tmp_path / "tasks.toml").write_text(TASKS)
    quick = {"reset_ms": 1, "step_ms": 1, "evaluate_ms": 1}
    return services.config(
        env={"backend": "simulated", "slots": 4, "simulated": quick, **BOUNDS},
        rollout={"engine": "scripted", "scripted": {"success_rate": 1.0}},
        tasks={"file": str(tmp_path / "tasks.toml")},
        run={"drain_s": 6, "state_dir": str(tmp_path)},
    )


class Held:
    """A policy that solves every task, but holds its answers back at first."""

    def __init__(self) -> None:
        self.held = True

    def __call__(self, request: ActionRequest) -> str | None:
        return None if self.held else solve(request)


@contextlib.contextmanager
def still(stopped: psutil.Process) -> Iterator[None]:
    """Have a process stand still meanwhile."""
    stopped.suspend()
    try:
        yield
    finally:
        stopped.resume()


def steps(numbers: range) -> list[Any]:
    return [order(number, f"simulated/steps-3#{number}") for number in numbers]


def judged(world: World) -> None:
    """No end carries a reward but a success."""
    ends = [last.end for of_order in world.ended.values() for last in of_order]
    assert {(end.kind, end.reward) for end in ends} <= {
        ("success", 1.0),
        ("policy_error", None),
        ("env_error", None),
        ("cancelled", None),
    }


async def play_on(world: World, numbers: range) -> None:
    """The workers are as they were: each task is solved when it is ordered now, again where a time-out ended it."""
    deadline = Deadline(BOUND_S)
    wanted = [*numbers]
    while wanted:
        assert not deadline.expired
        await world.order(*(order(number, f"simulated/steps-3#{number % AGAIN}") for number in wanted))
        await world.until(lambda wanted=wanted: all(world.ended[f"o{number}"] for number in wanted))
        wanted = [number + AGAIN for number in wanted if world.outcome(number) != "success"]


async def test_an_environment_worker_that_stood_still_in_mid_episode_judges_nobody(config: Config, tmp_path: Path):
    answer = Held()
    world = World(config, answer)
    async with serving(world):
        with process(config, tmp_path) as running:
            await world.order(*steps(range(4)))
            await world.until(lambda: len(world.requests) >= 4)
            answer.held = False
            with still(psutil.Process(running.pid)):
                for request in list(world.requests):  # answered while it stands still: it finds them, too late
                    await world.reply(request)
                await asyncio.sleep(STILL_S)
            await world.until(lambda: len(world.ended) == 4)
            await play_on(world, range(4, 8))
    judged(world)


@contextlib.contextmanager
def rollout_worker(config: Config, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    file = folder / "rollout.toml"
    write_toml(file, config)
    command = [
        sys.executable,
        "-m",
        "dart_streams.console.cli",
        "worker",
        "rollout",
        "--config",
        str(file),
        "--id",
        "rollout-0",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        try:
            yield running
        finally:
            running.kill()


class Onlooker(World):
    """The world without its answers: a rollout worker gives them."""

    async def reply(self, request: ActionRequest) -> None:
        """Leave it to the rollout worker."""


@contextlib.asynccontextmanager
async def circle(config: Config, folder: Path) -> AsyncIterator[tuple[World, subprocess.Popen[bytes]]]:
    """An environment worker here, and a rollout worker as a process, which play."""
    world = Onlooker(config, lambda request: None)
    async with serving(world), worker(config):
        first = events.weight_version()
        await world.publisher.publish(weights.TOPIC, first)
        with rollout_worker(config, folder) as running:
            for number in range(1000, 1100):  # until it is there, time-outs end what is ordered
                await world.order(order(number))
                await world.until(lambda number=number: bool(world.ended[f"o{number}"]))
                if world.outcome(number) == "success":
                    break
            yield world, running


async def test_episodes_whose_rollout_worker_stood_still_are_faults(config: Config, tmp_path: Path):
    async with circle(config, tmp_path) as (world, running):
        with still(psutil.Process(running.pid)):
            await world.order(*steps(range(4)))
            await world.until(lambda: all(world.ended[f"o{number}"] for number in range(4)))
        assert "policy_error" in {world.outcome(number) for number in range(4)}, "or it did not stand still"
        await play_on(world, range(4, 8))
    judged(world)


def broker_of(config: Config) -> psutil.Process:
    port = int(config.bus.servers.rpartition(":")[2])
    [pid] = {
        found.pid
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr.port == port
    }
    return psutil.Process(pid)


async def test_episodes_whose_broker_stood_still_are_faults(config: Config, tmp_path: Path):
    async with circle(config, tmp_path) as (world, _):
        await world.order(*steps(range(12)))
        await world.until(lambda: len(world.requests) > 2)
        with still(broker_of(config)):
            await asyncio.sleep(STILL_S)
        await world.until(lambda: all(world.ended[f"o{number}"] for number in range(12)))
        await play_on(world, range(12, 16))
    judged(world)
