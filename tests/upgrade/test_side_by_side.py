"""Release 0.2.0 and this one side by side on one broker and one keyspace, for the records of an hour."""

import asyncio
import json
import os
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from dart_streams import config as configuration
from dart_streams.config import Config
from tests.faults import invariants
from tests.faults.circle import TASKS
from tests.upgrade.deployment import BOUND_S, HOME, NEW, OLD, WORKERS, Deployment, deployed
from tests.upgrade.store_rows import differing_rows
from tests.waiting import wait_until
from topics.actions import ActionResponse
from topics.observations import Observation

pytestmark = [
    pytest.mark.timeout(4 * BOUND_S),
    pytest.mark.skipif(not OLD.python.is_file(), reason="`make test-upgrade` sets up release 0.2.0"),
]
HOUR = 175_000
"""Observations of an hour of the demonstration: 29.2 steps a second, and 70,000 episodes' first screens."""
SHARE = float(os.environ.get("DART_UPGRADE_SHARE", "1"))
SETTLED_S = 300.0
FIGURES = HOME / "figures.json"


def tables_of(services: Any, folder: Path) -> dict[str, Any]:
    """Return a configuration that both releases take."""
    running, run = services.running, uuid.uuid4().hex[:8]
    return {
        "bus": {"servers": running.bus.servers, "prefix": f"upgrade.{run}.", "wait_s": 60.0},
        "store": {
            "hosts": list(running.store.hosts),
            "port": running.store.port,
            "keyspace": services.keyspace,
            "wait_s": 60.0,
        },
        "run": {"id": run, "state_dir": str(folder / "state"), "drain_s": 4.0},
        "tasks": {"file": str(TASKS)},
        "env": {"backend": "simulated", "workers": 2, "slots": 16, "request_timeout_s": 20.0},
        "rollout": {"engine": "scripted", "workers": 2, "scripted": {"latency_ms": 15, "success_rate": 0.7}},
        "trainer": {"groups_per_step": 4},
        "telemetry": {"sampling": 0.0},
    }


@pytest.fixture
def file(services, tmp_path: Path) -> Path:
    made = tmp_path / "dart.toml"
    made.write_text(tomli_w.dumps(tables_of(services, tmp_path)))
    return made


@pytest.fixture
def config(services, file: Path) -> Config:
    loaded = configuration.load(file)
    services.buses.append(loaded.bus)
    return loaded


def until(deployment: Deployment, share: float) -> None:
    """Go on until this share of the records is there."""
    deployment.goes_on("observations", int(HOUR * SHARE * share))


def settle(deployment: Deployment) -> None:
    """End the trainer, and wait until nobody has records to read."""
    deployment.end(NEW, "trainer")
    counts = list[int]()

    def is_settled() -> bool:
        deployment.check_alive()
        counts.append(deployment.records()["curation-log"])
        lags = asyncio.run(invariants.read_lags(deployment.config))
        behind = [lag for lag in lags or () if lag.group in (*WORKERS, "curator") and lag.records]
        return bool(lags) and not behind and counts[-2:] == [counts[-1]] * 2

    wait_until(is_settled, "the end of all orders", SETTLED_S)


def upgrade(deployment: Deployment) -> None:
    """Go from the old release to the new one in mid-run, as docs/how-to/upgrade.md says, with a way back between."""
    deployment.run(OLD, "topics", "apply")
    deployment.run(OLD, "store", "apply")
    deployment.start(OLD, *WORKERS, "curator", "trainer")
    until(deployment, 0.1)
    deployment.run(NEW, "topics", "apply")
    deployment.run(NEW, "store", "apply")
    deployment.start(NEW, *WORKERS)
    wait_until(
        lambda: all(len(shares) == 2 and all(shares) for shares in deployment.shares(*WORKERS).values()),
        "partitions for both releases",
        BOUND_S,
    )
    until(deployment, 0.3)
    deployment.start(NEW, "curator")
    wait_until(lambda: len(deployment.shares("curator")["curator"]) == 2, "two curators", BOUND_S)
    deployment.decides()
    until(deployment, 0.4)
    deployment.kill(OLD, "curator")
    deployment.decides()
    until(deployment, 0.5)
    deployment.end(NEW, "curator")
    deployment.start(OLD, "curator")
    deployment.decides()
    until(deployment, 0.6)
    deployment.end(OLD, "curator", "trainer")
    deployment.start(NEW, "curator", "trainer")
    deployment.decides()
    until(deployment, 0.8)
    deployment.kill(OLD, "env")
    deployment.end(OLD, "rollout", "recorder")
    until(deployment, 1.0)


def test_two_releases_side_by_side_lose_and_refuse_nothing(file: Path, config: Config, pytestconfig: pytest.Config):
    began = time.monotonic()
    with deployed(file, config) as deployment:
        upgrade(deployment)
        settle(deployment)
        deployment.end(NEW, *WORKERS, "curator")
        records = deployment.records()
        assert {name: count for name, count in records.items() if name.endswith(".dlq") and count} == {}
        log = invariants.read(config)
        broken = invariants.of_log(config, log, asyncio.run(invariants.read_lags(config)))
        assert not broken, f"{json.dumps(broken, indent=1)}\n{deployment.evidence()}"
        assert differing_rows(config, log)[:5] == []
    wall_s = time.monotonic() - began
    hosts = Counter(event.env_host for event in log.all(Observation))
    workers = Counter(event.worker_id for event in log.all(ActionResponse))
    figures = {"records": records, "env": hosts, "rollout": workers, "wall_s": round(wall_s)}
    assert len(hosts) == len(workers) == 2
    FIGURES.write_text(json.dumps(figures, indent=2) + "\n")
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{json.dumps(figures)}")  # noqa: T201
