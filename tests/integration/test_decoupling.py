"""Short real runs of two modes keep the promises of a coupled deployment, and their accounts are whole."""

from pathlib import Path

import msgspec
import pytest
import structlog
from rich.console import Console

from benchmarks import decoupling_run, modes
from benchmarks.utilization import utilization_metrics
from dart_streams.config import Config
from dart_streams.console.launch.session import Finish, Session
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_log import present_records
from dart_streams.console.runs.run_state import RunState
from dart_streams.deadline import Deadline
from tests.integration.test_circle import until
from topics import Topic, rollout_orders, weights, weights_serving

DESKTOP = Path(__file__).parents[2] / "deploy/config/workload/desktop.toml"
SHAPE = modes.DeploymentShape(slots=6, workers=2, places=3, batch=1)
SCALE = 100.0
AT_LEAST_S = 36.0
MINUTES = 6.0
"""A safety net: what ends a run is that it has had its time and its versions."""
VERSIONS = 3

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def logs_of_a_run_stay_its_own():
    yield
    structlog.reset_defaults()


def quick(services, tmp_path: Path) -> Config:
    replace, running = msgspec.structs.replace, services.running
    base = modes.load_workload(DESKTOP, SCALE)
    return replace(
        base,
        bus=replace(base.bus, servers=running.bus.servers),
        store=replace(base.store, hosts=running.store.hosts, port=running.store.port, keyspace=services.keyspace),
        run=replace(base.run, state_dir=str(tmp_path)),
    )


def wired(made: folder.RunFolder, console: Console, finish: Finish) -> Session:
    """Return the session of a mode, which lasts at least so long, and until there are versions to compare."""
    enough_time: list[Deadline] = []

    def enough(state: RunState) -> bool:
        enough_time[:] = enough_time or [Deadline(AT_LEAST_S)]
        return enough_time[0].expired and len(state.versions) >= VERSIONS

    return until(decoupling_run.session_of(made, console, finish), enough)


def log(config: Config, topic: Topic) -> list:
    records = present_records(config.bus, topic)
    return [(kept.at_ms, msgspec.json.decode(kept.value, type=topic.event)) for kept in records]


@pytest.mark.parametrize("mode", ["coupled", "dart"])
def test_a_mode_lives_as_real_processes(services, tmp_path: Path, mode):
    player = decoupling_run.ModeRunner(MINUTES, lambda _: None, wired=wired)
    account = player.play(modes.mode_config(quick(services, tmp_path), mode, SHAPE, 0), mode, 0)
    assert player.newest == {mode: account}
    assert {"env", "recorder", "rollout", "curator", "trainer"} <= player.core_ms[mode].keys()
    assert player.core_ms[mode]["env"] > 0
    found = utilization_metrics(account, 0)
    assert 0 < found.rollout_utilisation <= 1
    assert 0 < found.env_utilisation <= 1
    assert found.staleness_max <= (0 if mode == "coupled" else SHAPE.max_staleness)
    if mode == "coupled":
        made = folder.find(str(tmp_path), "latest")
        batches_follow_versions(made.config())


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
