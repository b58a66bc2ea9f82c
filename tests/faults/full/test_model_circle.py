"""A circle with the real model side survives faults of the engine, the weights and their inputs.

The tiny policy as it is made, without any skill. What the groups can be trained on are their demonstrations, which the
pool gives to a group without a success; with vLLM also what it has answered.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Session

from console.launch import processes
from console.runs.run_log import read_events
from dart_streams.config import Config
from dart_streams.config.curation import Budget
from dart_streams.config.rollout import Scripted, Vllm
from dart_streams.store import connect
from tests.faults import scene
from tests.faults.circle import ROOT, Circle, circle, config_of
from tests.faults.network import BROKER, DATABASE
from tests.faults.scene import Site
from topics import curated, weights, weights_serving
from topics.weights import WeightVersion

pytestmark = pytest.mark.timeout(7200)
LASTS_S = 40.0
HANG_S = 60.0
"""Longer than any step or switch of the tiny policy takes beside other work."""
START_S = 600.0
MINUTES = 60.0
FAILING = ROOT / "tests/faults/failing_engine.py"
WEIGHTS_FILE = "model.safetensors"
BUILD = "import pathlib, sys; from dart_streams.policy import tiny; tiny.build(pathlib.Path(sys.argv[1]))"
DAMAGED = "the stored bytes have another digest; an environment that shows this screen again writes it anew"


def model_python() -> str:
    return str(processes.find_programs().model.parent / "python")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    subprocess.run([model_python(), "-c", BUILD, str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with scene.site(hours=1.0) as made:
        yield made


def model_config(services: Any, folder: Path, policy: Path, **rollout: Any) -> Config:
    """Return a circle with few slots: two cores have to do for all of it."""
    return config_of(
        services,
        folder,
        policy={"path": str(policy)},
        run={"demonstrate": True, "minutes": MINUTES},
        env={"slots": 4, "request_timeout_s": 30.0},
        rollout=rollout,
        trainer={"groups_per_step": 1},
        curation={"budget": Budget(base=2, dynamic=False), "max_staleness": 4},
    )


def log_of(running: Circle, name: str) -> str:
    return (running.made.path / "logs" / f"{name}.log").read_text(errors="replace")


def recovers(running: Circle, what: str, begin: float) -> None:
    """Wait for two further steps, and note the seconds since the fault."""
    running.goes_on()
    running.measured.setdefault("recovery", {})[what] = round(time.monotonic() - begin, 1)
    running.measured["recovery_s"] = max(running.measured["recovery"].values())


def fails(running: Circle, number: signal.Signals, message: str) -> None:
    """Have the engine fail at its next step; its worker says so and ends."""
    worker = running.of_kind("rollout")[0]
    worker.send_signal(number)
    running.until(lambda: message in log_of(running, "rollout-0"), message)
    running.until(lambda: not worker.is_running(), "the end of the worker")


def with_session(running: Circle, do: Callable[[Session], None]) -> None:
    session = connect(running.config.store)
    try:
        do(session)
    finally:
        session.cluster.shutdown()


def damage_screenshots(session: Session) -> None:
    """Have other bytes, as many, in the place of every screenshot."""
    for sha256, chunk, data in session.execute("SELECT sha256, chunk, data FROM blobs"):
        values = (bytes(len(data)), sha256, chunk)
        session.execute("UPDATE blobs SET data = %s WHERE sha256 = %s AND chunk = %s", values)


def tear_steps(session: Session, run: str) -> None:
    """Leave the first half of every step's row."""
    place = "run = %s AND trajectory_id = %s AND step = %s"
    for of_run, trajectory_id, step, text in session.execute("SELECT run, trajectory_id, step, observation FROM steps"):
        if of_run == run:
            values = (text[: len(text) // 2], run, trajectory_id, step)
            session.execute(f"UPDATE steps SET observation = %s WHERE {place}", values)


def newest(running: Circle) -> WeightVersion:
    return list(read_events(running.config.bus, [weights.TOPIC]))[-1]


def has_nothing_to_train_on(running: Circle) -> bool:
    """Whether the trainer has taken each group that was curated."""
    groups = {event.group_id for event in read_events(running.config.bus, [curated.TOPIC])}
    return newest(running).groups_consumed == len(groups)


def failed_to_load(running: Circle, torn: WeightVersion) -> bool:
    """Whether a worker has announced that it serves an older version, as it could not load this one."""
    announced = read_events(running.config.bus, [weights_serving.TOPIC])
    return any(one.failed_version == torn.version and one.version < torn.version for one in announced)


def test_faults_of_engine_screenshots_and_weights_are_named_and_survived(services, tmp_path: Path, policy: Path):
    """The worker that replaces the one with the failed engine reads the damaged files."""
    failing = {"rollout": (model_python(), str(FAILING))}
    config = model_config(
        services, tmp_path / "state", policy, engine="vllm", vllm=Vllm(hang_s=HANG_S, start_s=START_S)
    )
    with circle(config, "engine", failing) as running:
        begin = time.monotonic()
        with_session(running, damage_screenshots)
        fails(running, signal.SIGUSR1, "vLLM failed: RuntimeError: ")
        running.until(lambda: DAMAGED in log_of(running, "rollout-0"), "a damaged screenshot is named")
        recovers(running, "no memory, screenshots damaged", begin)

        begin = time.monotonic()
        running.of_kind("rollout")[0].send_signal(signal.SIGUSR2)
        running.until(lambda: has_nothing_to_train_on(running), "a trainer without groups")
        torn = newest(running)
        file = Path(torn.uri) / WEIGHTS_FILE
        file.write_bytes(file.read_bytes()[:-9])
        message = "vLLM hangs: a step or a switch has not returned"
        running.until(lambda: message in log_of(running, "rollout-0"), message)
        running.until(lambda: failed_to_load(running, torn), f"version {torn.version} is announced as failed")
        assert f"published {torn.sha256}" in log_of(running, "rollout-0")
        recovers(running, "hanging, weights damaged", begin)
        running.is_killed_once_more_and_ends_well()


def test_the_trainer_survives_network_and_disk_faults_and_names_torn_rows(site: Site, policy: Path):
    """Answers are scripted, so that the prompts of all but the demonstrations are others than the trainer's.

    Its network has no loopback address, which torch's process group would take.
    """
    faults = [
        scene.cut("trainer", BROKER, "both", LASTS_S),
        scene.cut("trainer", DATABASE, "in", LASTS_S),
        scene.run_disk_full(LASTS_S),
    ]
    config = model_config(site, site.folder, policy, engine="scripted", scripted=Scripted(success_rate=0.0))
    prefixes = {**site.prefixes}
    if "trainer" in prefixes:
        prefixes["trainer"] = (*prefixes["trainer"], "env", f"GLOO_SOCKET_IFNAME={site.networks['trainer'].its_end}")
    with circle(config, "trainer", prefixes) as running:
        running.measured["recovery"] = {
            fault.name: scene.of(running, site, fault) for fault in faults if not fault.reason
        }
        begin = time.monotonic()
        with_session(running, lambda session: tear_steps(session, running.config.bus.run))
        running.ends_with_an_error()
        said = " ".join(running.said().split())
        assert "a step of trajectory" in said
        command = re.search("`dart-streams (store rebuild --run [^`]+)` writes it again", said)
        assert command is not None, said
        rebuild = [*command[1].split(), "--state", str(site.folder)]
        subprocess.run([sys.executable, "-m", "console.cli.main", *rebuild], cwd=ROOT, check=False)
        running.resume()
        recovers(running, "rows torn", begin)
        running.is_killed_once_more_and_ends_well()
