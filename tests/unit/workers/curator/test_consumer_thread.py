"""The consumer's thread, with a client in place of Kafka's: how it ends, and what it reads of its group's errors."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import faust
import pytest
import pytest_asyncio
import structlog
from aiokafka.errors import KafkaError, UnknownError

from dart_streams.config import parse
from tests.task_files import write_tasks
from workers.curator import transport
from workers.curator.main import DataManager
from workers.curator.transport import ConsumerThread


class Coordinator:
    """The client's part in its group: an error stops it until it was read. It joins ``anew`` without a member id."""

    def __init__(self) -> None:
        self.errors: list[KafkaError] = []
        self.anew = threading.Event()
        self._coordination_task = asyncio.get_running_loop().create_future()

    def check_errors(self) -> None:
        if self.errors:
            raise self.errors.pop()

    def reset_generation(self) -> None:
        self.anew.set()


class Client:
    """A client whose ``stop`` raises; ``closed`` once its connections are."""

    def __init__(self, stops_with: BaseException | None = None) -> None:
        self.stops_with = stops_with
        self.closed = False
        self._coordinator = Coordinator()
        self._client = self

    async def start(self) -> None: ...

    async def stop(self) -> None:
        if self.stops_with is not None:
            raise self.stops_with
        await self.close()

    async def close(self) -> None:
        self.closed = True

    async def commit(self, _: object) -> None:
        await asyncio.Event().wait()  # as where a member has to join its group again


@pytest_asyncio.fixture
async def app(tmp_path) -> AsyncIterator[faust.App]:
    config = parse({"run": {"id": "a", "state_dir": str(tmp_path)}, "tasks": write_tasks(tmp_path, "grid")})
    yield DataManager(config, "curator-0")


async def thread_of(app: faust.App, client: Client, monkeypatch: pytest.MonkeyPatch) -> ConsumerThread:
    monkeypatch.setattr(ConsumerThread, "_create_consumer", lambda *_, **__: client)
    consumer: Any = app.consumer
    thread: ConsumerThread = consumer._thread
    await thread.start()
    return thread


@pytest.mark.parametrize("raised", [None, asyncio.CancelledError(), KafkaError("error during coordination")])
async def test_a_client_that_stops_with_an_error_ends_its_thread_in_order(app, monkeypatch, raised):
    uncaught: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    monkeypatch.setattr(transport, "COMMIT_TIMEOUT_S", 0.01)
    client = Client(raised)
    thread = await thread_of(app, client, monkeypatch)
    assert not await thread.commit({}), "the next one covers it"
    with structlog.testing.capture_logs() as logs:
        await thread.stop()
    assert (uncaught, client.closed) == ([], True)
    assert [line["event"] for line in logs] == ([] if raised is None else ["the consumer's client ended with an error"])


async def test_an_unread_group_error_stops_no_coordination(app, monkeypatch):
    """As of a member that another of its id has replaced in mid-rebalance, when no record is fetched."""
    monkeypatch.setattr(transport, "CHECK_INTERVAL_S", 0.01)
    client = Client()
    thread = await thread_of(app, client, monkeypatch)
    with structlog.testing.capture_logs() as logs:
        client._coordinator.errors = [KafkaError(repr(UnknownError()))]
        assert await asyncio.to_thread(client._coordinator.anew.wait, 120)
        await thread.stop()
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("the consumer group answered with an error: joining it again", "KafkaError: UnknownError()")
    ]
