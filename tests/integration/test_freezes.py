"""No episode gets a reward of 0 from a process that was frozen for longer than every bound.

The policy solves every task here, so an episode that ends with a reward below 1 was judged by a clock.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from dart_streams.bus import admin
from dart_streams.config import Config
from dart_streams.deadline import Deadline
from tests import events
from tests.integration.env_harness import BOUND_S, QUICK, Harness, order, process, serving, solve, worker
from tests.task_files import write_tasks
from tests.worker_runs import worker_process
from topics import weights
from topics.action_requests import ActionRequest

STILL_S = 6.0
"""Longer than a request's time-outs, all of them, and than an episode may take."""
BOUNDS = {"request_timeout_s": 1.0, "episode_timeout_s": 4.0}
AGAIN = 10_000
"""What is added to an order's number for its next order."""


@pytest.fixture
def config(services: Any, tmp_path: Path) -> Config:
    return services.config(
        env={"backend": "simulated", "slots": 4, "simulated": QUICK, **BOUNDS},
        rollout={"engine": "scripted", "scripted": {"success_rate": 1.0}},
        tasks=write_tasks(tmp_path, "box", "steps-3"),
        run={"drain_s": 6, "state_dir": str(tmp_path)},
    )


class Held:
    """A policy that solves every task once ``held`` is false."""

    def __init__(self) -> None:
        self.held = True

    def __call__(self, request: ActionRequest) -> str | None:
        return None if self.held else solve(request)


@contextlib.contextmanager
def still(stopped: psutil.Process) -> Iterator[None]:
    """Suspend a process for the duration of the block."""
    stopped.suspend()
    try:
        yield
    finally:
        stopped.resume()


def steps(numbers: range) -> list[Any]:
    return [order(number, f"simulated/steps-3#{number}") for number in numbers]


def judged(harness: Harness) -> None:
    """Check that only successes carry a reward."""
    ends = [last.end for of_order in harness.ended.values() for last in of_order]
    assert {(end.kind, end.reward) for end in ends} <= {
        ("success", 1.0),
        ("policy_error", None),
        ("env_error", None),
        ("cancelled", None),
    }


async def play_on(harness: Harness, numbers: range) -> None:
    """Check that the workers solve each task when it is ordered now, again where a time-out ended it."""
    deadline = Deadline(BOUND_S)
    wanted = [*numbers]
    while wanted:
        assert not deadline.expired
        await harness.order(*(order(number, f"simulated/steps-3#{number % AGAIN}") for number in wanted))
        await harness.until(lambda wanted=wanted: all(harness.ended[f"o{number}"] for number in wanted))
        wanted = [number + AGAIN for number in wanted if harness.outcome(number) != "success"]


async def test_a_frozen_environment_worker_gives_no_reward_below_1(config: Config, tmp_path: Path):
    answer = Held()
    harness = Harness(config, answer)
    async with serving(harness):
        with process(config, tmp_path) as running:
            await harness.order(*steps(range(4)))
            await harness.until(lambda: len(harness.requests) >= 4)
            answer.held = False
            with still(psutil.Process(running.pid)):
                for request in list(harness.requests):  # answered while it stands still: it finds them, too late
                    await harness.reply(request)
                await asyncio.sleep(STILL_S)
            await harness.until(lambda: len(harness.ended) == 4)
            await play_on(harness, range(4, 8))
    judged(harness)


class Onlooker(Harness):
    """A circle whose answers a rollout worker gives."""

    async def reply(self, request: ActionRequest) -> None:
        """Leave it to the rollout worker."""


@contextlib.asynccontextmanager
async def circle(config: Config, folder: Path) -> AsyncIterator[tuple[Harness, subprocess.Popen[bytes]]]:
    """An environment worker here, and a rollout worker as a process, which play."""
    harness = Onlooker(config, lambda request: None)
    async with serving(harness), worker(config):
        await harness.publisher.publish(weights.TOPIC, events.weight_version())
        with worker_process("rollout", config, folder, log=folder / "rollout.log") as running:
            for number in range(1000, 1100):  # until it is there, time-outs end what is ordered
                await harness.order(order(number))
                await harness.until(lambda number=number: bool(harness.ended[f"o{number}"]))
                if harness.outcome(number) == "success":
                    break
            yield harness, running


async def test_episodes_whose_rollout_worker_froze_are_faults(config: Config, tmp_path: Path):
    async with circle(config, tmp_path) as (harness, running):
        with still(psutil.Process(running.pid)):
            await harness.order(*steps(range(4)))
            await harness.until(lambda: all(harness.ended[f"o{number}"] for number in range(4)))
        assert "policy_error" in {harness.outcome(number) for number in range(4)}, "or it did not stand still"
        await play_on(harness, range(4, 8))
    judged(harness)


def broker_of(config: Config) -> psutil.Process:
    port = int(config.bus.servers.rpartition(":")[2])
    [pid] = {
        found.pid
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr.port == port
    }
    return psutil.Process(pid)


async def test_episodes_whose_broker_froze_are_faults(config: Config, secured, tmp_path: Path):
    """It is a broker of this process alone: tests beside this one use that of the session."""
    config = msgspec.structs.replace(config, bus=msgspec.structs.replace(config.bus, servers=secured.operator.servers))
    admin.apply_all(config.bus)
    async with circle(config, tmp_path) as (harness, _):
        await harness.order(*steps(range(12)))
        await harness.until(lambda: len(harness.requests) > 2)
        with still(broker_of(config)):
            await asyncio.sleep(STILL_S)
        await harness.until(lambda: all(harness.ended[f"o{number}"] for number in range(12)))
        await play_on(harness, range(12, 16))
    judged(harness)
