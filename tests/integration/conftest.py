"""What these tests share: a keyspace, guarded services, and logs that stay their own."""

import uuid
from collections.abc import Iterator

import msgspec
import pytest
import structlog

from dart_streams.config import Store
from tests.integration.secured import Secured, secured_services
from tests.stored_rows import cluster_of


@pytest.fixture(autouse=True)
def logs_of_a_run_stay_its_own() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def secured() -> Iterator[Secured]:
    """Services that want passwords, TLS and rights, once for the files that :data:`conftest.GUARDED` names."""
    with secured_services() as services:
        yield services


@pytest.fixture
def keyspace(services) -> Iterator[Store]:
    """The settings of a keyspace that does not exist."""
    settings = msgspec.structs.replace(services.config().store, keyspace=f"test_{uuid.uuid4().hex[:8]}")
    yield settings
    with cluster_of(settings) as cluster:
        cluster.connect().execute(f"DROP KEYSPACE IF EXISTS {settings.keyspace}", timeout=60)
