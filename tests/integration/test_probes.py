"""Probes of worker processes on a real broker: ready with partitions and weights, alive while the loop turns."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.runs.run_folder import write_toml
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.telemetry.health_server import PORT
from dart_streams.telemetry.process_health import STARTING
from tests.events import weight_version
from tests.fork_server import Forked
from tests.waiting import wait_until
from topics import weights

Answer = tuple[int, str]


class ProbedWorker:
    """A worker process and its probes; its program can halt its event loop."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self.log = log
        self.port = 0

    def find_port(self) -> int:
        """The port that the process logs, 0 before."""
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                if (fields := json.loads(line)).get("event") == "answering probes":
                    self.port = int(fields["port"])
        assert self.process.poll() is None, self.log.read_text()
        return self.port

    def ask(self, path: str) -> Answer:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().strip()

    def await_ok(self, path: str) -> None:
        """Wait until a probe is answered by ok; a busy machine may delay a turn of the loop beyond its bound."""
        wait_until(lambda: self.ask(path) == (200, "ok"), f"{self.process.args} to answer {path}")


@contextlib.contextmanager
def probed_worker(kind: str, config: Config, folder: Path, name: str) -> Iterator[ProbedWorker]:
    file = folder / f"{name}.toml"
    write_toml(file, config)
    program = [sys.executable, "-m", "tests.integration.halting_worker", "worker", kind]
    log = folder / f"{name}.log"
    with log.open("w") as errors:
        process = Forked(
            [*program, "--config", str(file), "--id", name], stderr=errors, text=True, env={**os.environ, PORT: "0"}
        )
    worker = ProbedWorker(process, log)
    try:
        wait_until(worker.find_port, "the port of the probes")
        yield worker
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def config(services) -> Config:
    return services.config(
        bus={"topics": {"partitions": 1}},
        rollout={"engine": "scripted", "workers": 1},
        env={"workers": 1},
        tasks={"file": str(Path("tests/integration/circle-tasks.toml").absolute())},
        telemetry={"stall_s": 1.0},
    )


def test_a_worker_without_partitions_is_not_ready_until_it_has_some(config: Config, tmp_path: Path):
    with probed_worker("recorder", config, tmp_path, "recorder-0") as first:
        first.await_ok("/readyz")
        with probed_worker("recorder", config, tmp_path, "recorder-1") as second:
            both = [first, second]
            lacks = "no partition in the group recorder: it waits for a rebalance, or is one too many"
            wait_until(lambda: sorted(w.ask("/readyz") for w in both) == [(200, "ok"), (503, lacks)], "one owner")
            for worker in both:
                worker.await_ok("/livez")
            owner, spare = sorted(both, key=lambda worker: worker.ask("/readyz")[0])
            owner.process.terminate()
            spare.await_ok("/readyz")


async def test_a_rollout_worker_is_ready_when_it_serves_weights(config: Config, tmp_path: Path):
    with probed_worker("rollout", config, tmp_path, "rollout-0") as worker:
        wait_until(lambda: "a first version" in worker.log.read_text(), "the worker to wait for weights", 120)
        assert worker.ask("/readyz") == (503, STARTING)
        worker.await_ok("/livez")
        async with Publisher(config.bus, "test") as publisher:
            await publisher.publish(weights.TOPIC, weight_version(0))
        worker.await_ok("/readyz")


def test_a_worker_whose_loop_hangs_is_not_alive(config: Config, tmp_path: Path):
    with probed_worker("recorder", config, tmp_path, "recorder-0") as worker:
        worker.await_ok("/readyz")
        worker.process.send_signal(signal.SIGUSR1)
        status, reason = wait_until(lambda: (a := worker.ask("/livez"))[0] == 503 and a, "the hang to be seen")
        assert status == 503
        assert reason.endswith("and the bound is 2 s")
        assert worker.process.poll() is None


def test_the_curator_is_ready_with_the_inputs_of_its_agents(config: Config, tmp_path: Path):
    with probed_worker("curator", config, tmp_path, "curator-0") as worker:
        worker.await_ok("/readyz")
        worker.await_ok("/livez")
