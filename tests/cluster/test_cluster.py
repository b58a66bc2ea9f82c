"""Three brokers and three database nodes, each of which is killed and comes back, under a run and after a move."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.config.connections import TopicSettings
from dart_streams.deadline import Deadline
from tests.cluster.nodes import COPIES, DATACENTER, Nodes, nodes
from tests.cluster.pauses import Seen, Window, summarize
from tests.faults import invariants
from tests.faults.circle import POLL_S, ROOT, circle, config_of
from topics.observations import Observation

pytestmark = pytest.mark.timeout(1800)
AWAY_S = 15.0
"""Longer than a broker's session with its controller (9 s), and than the gossip of nodes takes to miss one."""
FIGURES = ROOT / ".dart" / "cluster.json"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes() as made:
        yield made


def config_on(cluster: Nodes, folder: Path) -> Config:
    return config_of(
        cluster,
        folder,
        bus={"topics": TopicSettings(replicas=COPIES)},
        store={"replication": COPIES, "local_dc": DATACENTER},
    )


def observations_of(config: Config) -> list[Seen]:
    log = invariants.read(config)
    return [
        Seen(record.event.trajectory_id, record.metadata.at_ms)
        for record in log.records
        if isinstance(record.event, Observation)
    ]


def test_a_run_outlives_each_broker_and_database_node(cluster: Nodes, tmp_path: Path, pytestconfig: pytest.Config):
    windows = []
    with circle(config_on(cluster, tmp_path), "cluster") as running:
        prefix = running.config.bus.prefix
        cluster.await_in_sync(prefix, cluster.keyspace)
        for name in cluster.services:
            begin_ms = now_ms()
            cluster.kill(name)
            away = Deadline(AWAY_S)
            while not away.expired:
                time.sleep(POLL_S)
            running.goes_on()
            back_ms = now_ms()
            windows.append(Window(f"{name} away", begin_ms, back_ms))
            cluster.up(name)
            cluster.await_in_sync(prefix, cluster.keyspace)
            running.goes_on()
            windows.append(Window(f"{name} back", back_ms, now_ms()))
        running.is_killed_once_more_and_ends_well()
        figures = summarize(observations_of(running.config), windows)
    text = json.dumps(figures, indent=2)
    FIGURES.write_text(text + "\n")
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{text}")  # noqa: T201
