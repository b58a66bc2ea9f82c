"""What these tests share: desktops, a keyspace, and the figures that the tests of the web page have measured."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cassandra.cluster import Cluster

from dart_streams.config import Store

FIGURES = Path(__file__).parents[2] / ".dart" / "page-screenshots"
BEGUN_S = time.time()


def pytest_terminal_summary(terminalreporter) -> None:
    """Print the figures of this session."""
    for file in sorted(FIGURES.glob("*.txt")):
        if file.stat().st_mtime >= BEGUN_S:
            terminalreporter.write_line(f"{file.stem}: {file.read_text()}")


@pytest.fixture(scope="module")
def desktops_of_normal_priority() -> Iterator[None]:
    """Give desktops the priority of this process.

    At their own, low one an office suite takes minutes to start while other tests use all processors.
    """
    from workers.env.backends.desktop import limits, sandbox

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "LOW_PRIORITY", ())
        patch.setattr(limits, "SHARES", 1024)
        patch.setattr(limits, "NICE", 0)
        patch.setattr(limits, "WEIGHTS", {"cpu.shares": (1024, 2**18), "cpu.weight": (100, 10_000)})
        yield


@pytest.fixture
def keyspace(services) -> Iterator[Store]:
    """The settings of a keyspace that does not exist."""
    settings = msgspec.structs.replace(services.config().store, keyspace=f"test_{uuid.uuid4().hex[:8]}")
    yield settings
    with Cluster(list(settings.hosts), port=settings.port) as cluster:
        cluster.connect().execute(f"DROP KEYSPACE IF EXISTS {settings.keyspace}", timeout=60)
