"""A short real run keeps the promises of a coupled deployment, and its account is whole."""

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks import decoupling_run, modes
from benchmarks.utilization import utilization_metrics
from console.launch.session import Finish, Session
from console.runs import run_folder as folder
from console.runs.run_log import present_records
from dart_streams.config import Config
from tests.integration.test_circle import until
from topics import Topic, rollout_orders, weights, weights_serving

DESKTOP = Path(__file__).parents[2] / "deploy/config/workload/desktop.toml"
SHAPE = modes.DeploymentShape(slots=6, workers=2, places=3, batch=1)
SCALE = 100.0
MINUTES = 6.0
"""A safety net: what ends a run is that it has had its versions."""
VERSIONS = 4

pytestmark = pytest.mark.timeout(600)


def wired(made: folder.RunFolder, console: Console, finish: Finish) -> Session:
    """Return the session of a mode, which lasts until there are versions to compare."""
    return until(decoupling_run.session_of(made, console, finish), lambda state: len(state.versions) >= VERSIONS)


def log(config: Config, topic: Topic) -> list:
    records = present_records(config.bus, topic)
    return [(kept.at_ms, msgspec.json.decode(kept.value, type=topic.event)) for kept in records]


def test_batches_of_a_coupled_deployment_follow_versions(services, tmp_path: Path):
    player = decoupling_run.ModeRunner(MINUTES, lambda _: None, wired=wired)
    quick = services.serve(modes.load_workload(DESKTOP, SCALE), tmp_path)
    account = player.play(modes.mode_config(quick, "coupled", SHAPE, 0), "coupled", 0)
    assert player.newest == {"coupled": account}
    assert {"env", "recorder", "rollout", "curator", "trainer"} <= player.core_ms["coupled"].keys()
    assert player.core_ms["coupled"]["env"] > 0
    found = utilization_metrics(account, 0)
    assert 0 < found.rollout_utilisation <= 1
    assert 0 < found.env_utilisation <= 1
    assert found.staleness_max == 0
    batches_follow_versions(folder.find(str(tmp_path), "latest").config())


def batches_follow_versions(config: Config) -> None:
    """A batch's first order is written after its version was published and every worker has announced it."""
    orders = log(config, rollout_orders.TOPIC)
    served: dict[int, int] = {}
    for worker in ("rollout-0", "rollout-1"):
        first: dict[int, int] = {}
        for at_ms, event in log(config, weights_serving.TOPIC):
            if event.worker_id == worker:
                first.setdefault(event.version, at_ms)
        for version, at_ms in first.items():
            served[version] = max(served.get(version, 0), at_ms)
    published = {event.version for _, event in log(config, weights.TOPIC)}
    assert len(published) >= VERSIONS
    for at_ms, order in orders:
        assert at_ms >= served[order.after_version], f"{order.order_id} before all serve {order.after_version}"
