"""More than four workers of each kind share a run: each has work, no order is lost, and the store equals the log."""

from pathlib import Path

import msgspec
import pytest
import structlog
from rich.console import Console

from benchmarks import many_workers, modes
from dart_streams.config import Config
from dart_streams.console.launch.session import Finish, Session, run_session
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_state import RunState
from tests.integration.test_circle import until

DESKTOP = Path(__file__).parents[2] / "deploy/config/workload/desktop.toml"
WORKERS = 5
SLOTS = 20
EPISODES = 40
PACE_S = 0.05
MINUTES = 8.0
"""A safety net: the run ends once it has its episodes."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def logs_of_a_run_stay_its_own():
    yield
    structlog.reset_defaults()


def spread(services, tmp_path: Path) -> Config:
    replace, running = msgspec.structs.replace, services.running
    config = many_workers.spread_config(modes.load_workload(DESKTOP), SLOTS, WORKERS, PACE_S, MINUTES)
    return replace(
        config,
        bus=replace(config.bus, servers=running.bus.servers),
        store=replace(config.store, hosts=running.store.hosts, port=running.store.port, keyspace=services.keyspace),
        run=replace(config.run, state_dir=str(tmp_path), settle_s=1.0),
        ui=replace(config.ui, enabled=False),
    )


def enough(state: RunState) -> bool:
    hosts = {header.env_host for header in state.newest.values()}
    return len(state.trajectories) >= EPISODES and len(hosts) == WORKERS


def ending(made: folder.RunFolder, console: Console, finish: Finish) -> Session:
    return until(many_workers.spread_session(made, console, finish), enough)


def test_five_workers_of_each_kind_share_a_run(services, tmp_path: Path):
    config = spread(services, tmp_path)
    assert config.bus.topics.partitions == WORKERS
    made = folder.create(config, Path(config.tasks.file), "five-workers", resume=False)
    run_session(made, lambda log: ending(made, Console(file=log), many_workers.write_report))
    found = many_workers.spread_metrics(made, PACE_S)
    assert found["idle_workers"] == {"env": 0, "rollout": 0, "recorder": 0}
    assert found["lost"] == 0
    assert found["store_equals_log"], (found["rows"], found["rows_of_log"])
    assert found["rows"]["trajectories"] >= EPISODES
