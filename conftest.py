"""What tests of every kind share: real services, started once a session."""

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadFileScheduling

from benchmarks.private_services import ENVIRONMENT, private_services
from dart_streams.bus import admin
from dart_streams.config import Bus, Config, parse
from dart_streams.store import create_schema
from tests import durations
from tests.circle_evidence import pytest_runtest_makereport
from tests.stored_rows import cluster_of

__all__ = ["pytest_runtest_makereport"]

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", UNTIMED, derandomize=True, max_examples=25)
settings.register_profile("nightly", UNTIMED, max_examples=500)
settings.load_profile("quick")
"""How long an example takes says how busy the machine is. A change is tested on the same examples as the one before it:
``--hypothesis-profile nightly`` draws more, and others each time."""


def pytest_configure(config: pytest.Config) -> None:
    """Measure how long files take where a file for it is named, except in the workers of pytest-xdist.

    Hypothesis draws constants of all code that is imported so far as well. By the profile ``quick`` it does not.
    """
    if config.getoption("--hypothesis-profile") != "nightly":
        pytest.MonkeyPatch().setattr(providers, "is_local_module_file", lambda _: False)
    file = os.environ.get(durations.ENVIRONMENT)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(durations.Recorder(Path(file)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let long files begin first: none that begins late keeps one worker busy alone.

    With ``--no-loadscope-reorder``: pytest-xdist of itself begins files of few tests last, however long they take.
    """
    if not config.getoption("loadscopereorder", True):
        durations.sort_longest_first(items, durations.read())


GUARDED = ("test_security.py", "test_access_rights.py", "test_store_rights.py", "test_freezes.py")
"""Files that share services of their own, and so a worker."""


class ByServices(LoadFileScheduling):
    """The tests of a file stay together, and files that share services of their own."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "guarded" if file.endswith(GUARDED) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Schedule by file and services with ``--dist loadfile``."""
    return ByServices(config, log) if config.getoption("dist") == "loadfile" else None


ODD = ",#=50%25 *[b]::\u0436"
"""Letters with a meaning in lists, addresses and patterns, as a part of each test's state folder."""


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
            "run": {"id": run, "state_dir": str(self.folder / f"{run}{ODD}")},
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

    def serve(self, config: Config, folder: Path) -> Config:
        """Return a configuration on these services, with its topics unmade and its state in ``folder``."""
        replace, running = msgspec.structs.replace, self.running
        store = replace(config.store, hosts=running.store.hosts, port=running.store.port, keyspace=self.keyspace)
        bus, run = replace(config.bus, servers=running.bus.servers), replace(config.run, state_dir=str(folder))
        return replace(config, bus=bus, store=store, run=run)

    def forget(self) -> None:
        """Remove the topics and the keyspace that the session made, where the services outlive it."""
        with admin.connect(self.running.bus) as client:
            ours = tuple(bus.prefix for bus in self.buses)
            names = [name for name in client.list_topics() if name.startswith(ours)]
            if names:
                client.delete_topics(names)
        with cluster_of(self.running.store) as cluster:
            cluster.connect().execute(f"DROP KEYSPACE IF EXISTS {self.keyspace}", timeout=120)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A Kafka and a Cassandra of this test session, or those that DART_TEST_SERVICES names."""
    with private_services() as running:
        session = Services(running, tmp_path_factory.mktemp("services"))
        yield session
        if ENVIRONMENT in os.environ:
            session.forget()
