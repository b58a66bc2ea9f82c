"""What tests of every kind share: real services, started once a session."""

import os
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Cluster
from hypothesis import settings

from benchmarks.private_services import ENVIRONMENT, private_services
from dart_streams.bus import admin
from dart_streams.config import Bus, Config, parse
from dart_streams.store import create_schema

settings.register_profile("same-examples", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("same-examples")
"""How long an example takes says how busy the machine is. A change is tested on the same examples as the one before it:
``--hypothesis-profile search`` draws others each time."""


TESTS = Path(__file__).parent
LONGEST = (
    "integration/test_sft_circle.py",
    "integration/test_demonstrate_circle.py",
    "faults/test_disturbed_circle.py",
    "integration/test_proposed_circle.py",
    "integration/test_curator.py",
    "faults/test_whole_circle.py",
    "integration/test_circle.py",
    "faults/test_outsiders.py",
    "integration/test_gui_actor_run.py",
    "integration/test_take_over_circle.py",
    "integration/test_page_broker_away.py",
    "integration/test_access_rights.py",
    "integration/test_many_workers.py",
    "faults/test_disturbed_environments.py",
    "integration/test_desktop.py",
    "integration/test_miniwob.py",
    "integration/test_environment_conformance.py",
    "integration/test_miniwob_faults.py",
    "integration/test_decoupling.py",
    "integration/test_feedback_circle.py",
    "integration/test_ui_tars_page.py",
    "integration/test_osworld_contract.py",
    "faults/test_poison.py",
    "integration/test_endpoint_run.py",
    "integration/test_page_accessibility.py",
    "integration/test_page_live.py",
    "integration/test_page_slots.py",
    "integration/test_page_of_finished_run.py",
    "model/test_trainer_run.py",
    "model/test_sft.py",
    "model/test_trainer_network.py",
    "model/test_families.py",
    "model/test_tensor_parallel_workers.py",
    "model/test_distillation.py",
    "model/test_trainer_lora.py",
    "model/test_critic.py",
)
"""Files that take half a minute to eleven, the longest of each folder first."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let long files begin first, and then those of most tests: none that begins late keeps one worker busy alone.

    With ``--no-loadscope-reorder``: pytest-xdist of itself begins files of few tests last, however long they take.
    """
    if config.getoption("loadscopereorder", True):
        return
    places = {(TESTS / name).resolve(strict=True): place for place, name in enumerate(LONGEST)}
    count = Counter(item.path for item in items)
    items.sort(key=lambda item: (places.get(item.path, len(places)), -count[item.path]))


class Services:
    """A running Kafka and Cassandra, and configurations that share nothing but those."""

    def __init__(self, running: Config, folder: Path) -> None:
        self.running = running
        self.folder = folder
        self.keyspace = f"test_{uuid.uuid4().hex[:8]}"
        self.buses: list[Bus] = []
        self.keyspaces: set[str] = set()

    def config(self, *, recipe: Sequence[str] = (), **overrides: dict[str, Any]) -> Config:
        """Return a configuration with its own topics and tables (applied), run and state folder.

        ``overrides`` are tables of the configuration file: ``config(env={"slots": 2})``. The keyspace is the session's,
        for rows carry the run, and a schema takes seconds; ``store={"keyspace": …}`` asks for one more. ``recipe``
        are recipes by name.
        """
        run = uuid.uuid4().hex[:8]
        tables: dict[str, Any] = {
            "recipe": list(recipe),
            "run": {"id": run, "state_dir": str(self.folder / run)},
            "bus": {"servers": self.running.bus.servers, "prefix": f"test.{run}."},
            "store": {
                "hosts": list(self.running.store.hosts),
                "port": self.running.store.port,
                "keyspace": self.keyspace,
            },
        }
        for name, table in overrides.items():
            tables[name] = {**tables.get(name, {}), **table}
        config = parse(tables, source="the test's overrides")
        admin.apply_all(config.bus)
        if config.store.keyspace not in self.keyspaces:
            create_schema(config.store)
            self.keyspaces.add(config.store.keyspace)
        self.buses.append(config.bus)
        return config

    def forget(self) -> None:
        """Remove the topics and the keyspace that the session made, where the services outlive it."""
        with admin.connect(self.running.bus) as client:
            ours = tuple(bus.prefix for bus in self.buses)
            names = [name for name in client.list_topics() if name.startswith(ours)]
            if names:
                client.delete_topics(names)
        with Cluster(list(self.running.store.hosts), port=self.running.store.port) as cluster:
            cluster.connect().execute(f"DROP KEYSPACE IF EXISTS {self.keyspace}", timeout=60)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A Kafka and a Cassandra of this test session, or those that DART_TEST_SERVICES names."""
    with private_services() as running:
        session = Services(running, tmp_path_factory.mktemp("services"))
        yield session
        if ENVIRONMENT in os.environ:
            session.forget()
