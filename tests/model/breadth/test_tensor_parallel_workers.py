"""Rollout workers of two ranks each, side by side: they do not disturb each other, and leave no process behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from console.launch import subreaper
from console.runs.run_folder import write_toml
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.policy import weights
from tests import events
from tests.model.engines import wait_until_ended
from tests.topic_reader import TopicReader
from tests.worker_runs import PROGRAM
from topics import weights as versions
from topics import weights_serving

pytestmark = pytest.mark.timeout(1800)
START_S = 900.0
ENDS_S = 120.0
"""Bound of a worker's end after its rank's: a heartbeat, the exit, and time to reap."""
GRACE_S = 120.0


@contextlib.contextmanager
def workers(config: Config, folder: Path, count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start rollout workers at the same time, each below a subreaper as a supervisor has it."""
    file = folder / "config.toml"
    write_toml(file, config)
    with contextlib.ExitStack() as stack:
        started = []
        for number in range(count):
            log = stack.enter_context((folder / f"rollout-{number}.log").open("wb"))
            command = [str(PROGRAM), "worker", "rollout", "--config", str(file), "--id", f"rollout-{number}"]
            process = subprocess.Popen(
                [sys.executable, subreaper.__file__, str(GRACE_S), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
            stack.callback(process.kill)
            started.append(process)
        yield started


def worker_of(process: "subprocess.Popen[bytes]") -> int:
    """Return the process id of the worker below a subreaper."""
    [worker] = children(process.pid)
    return worker


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ranks_of(worker: int) -> list[int]:
    """Return the processes of a worker's ranks, whose titles vLLM sets."""
    below = subreaper.find_descendants(worker)
    return [pid for pid in below if b"VLLM::Worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def until_all_serve(config: Config, count: int) -> dict[str, Any]:
    async with TopicReader(config, weights_serving.TOPIC) as reader, asyncio.timeout(START_S):
        found: dict[str, Any] = {}
        while len(found) < count:
            event = reader.events[-1] if reader.records else None
            if event is not None:
                found[event.worker_id] = event
            reader.records.append(await reader.consumer.getone())
        return found


async def publish_weights(config: Config, policy: Path) -> str:
    """Publish a policy's weights as version 0; return their digest."""
    uri = f"{(config.run.folder / 'weights').resolve()}/version-0"
    sha256 = weights.save(weights.model_state(policy), uri)
    async with Publisher(config.bus, "test") as publisher:
        await publisher.publish(
            versions.TOPIC, events.weight_version(0, uri=uri, sha256=sha256, model_id=config.policy.model_id)
        )
    return sha256


async def test_each_of_two_workers_ends_whole_and_the_other_goes_on(services, policy, tmp_path):
    config = services.config(policy={"path": str(policy)}, rollout={"workers": 2, "vllm": {"tensor_parallel": 2}})
    sha256 = await publish_weights(config, policy)
    with workers(config, tmp_path, 2) as (first, second):
        served = await until_all_serve(config, 2)
        assert {event.version for event in served.values()} == {0}
        assert {event.sha256 for event in served.values()} == {sha256}
        own, others = (subreaper.find_descendants(process.pid) for process in (first, second))
        ranks = ranks_of(worker_of(first))
        assert len(ranks) == len(ranks_of(worker_of(second))) == 2

        os.kill(ranks[1], signal.SIGKILL)
        assert await asyncio.to_thread(first.wait, ENDS_S) == 1
        wait_until_ended(own)
        assert "one of vLLM's 2 ranks has ended" in (tmp_path / "rollout-0.log").read_text()

        assert second.poll() is None
        second.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(second.wait, GRACE_S + ENDS_S) == 0
        wait_until_ended(others)


async def test_ranks_end_with_a_worker_that_is_killed(services, policy, tmp_path):
    """Without a supervisor: nothing but the kernel ends them."""
    config = services.config(policy={"path": str(policy)}, rollout={"vllm": {"tensor_parallel": 2}})
    await publish_weights(config, policy)
    with workers(config, tmp_path, 1) as (process,):
        await until_all_serve(config, 1)
        process.send_signal(signal.SIGSTOP)
        worker = worker_of(process)
        ranks = ranks_of(worker)
        assert len(ranks) == 2
        os.kill(worker, signal.SIGKILL)
        wait_until_ended(ranks)
        process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(process.wait, ENDS_S) == 128 + signal.SIGKILL
