"""A broker whose advertised listener can't be reached: named by the doctor and by every client in `bus.wait_s`."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError

from console.cli.doctor_checks import check_broker
from console.launch.services.daemon import free_port
from dart_streams.bus import admin, readiness
from dart_streams.bus.clients import create_consumer, start_within
from dart_streams.config import Bus, Config
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable

OWN = ("127.0.0.1", 0)


@contextlib.asynccontextmanager
async def broker(*advertised: tuple[str, int]) -> AsyncIterator[Bus]:
    """Serve a broker that lists brokers at these addresses; port 0 is its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, _, correlation = struct.unpack(">hhi", (await reader.readexactly(size))[:8])
                body = (
                    struct.pack(">hi6h", 0, 2, 18, 0, 0, 3, 0, 0) if key == 18 else struct.pack(">i", len(advertised))
                )
                for host, place in advertised if key == 3 else ():
                    body += struct.pack(f">ih{len(host)}si", 1, len(host), host.encode(), place or port)
                body += b"" if key == 18 else struct.pack(">i", 0)
                writer.write(struct.pack(">ii", 4 + len(body), correlation) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Bus(servers=f"127.0.0.1:{port}", wait_s=1.0)
    finally:
        server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "broker.invalid"])
async def test_a_listener_that_is_not_reached_is_named_by_all(host):
    place = (host, free_port())
    async with broker(place) as bus, asyncio.timeout(60):
        said = rf"advertises {host}:{place[1]}.* broker's advertised.listeners"
        with pytest.raises(ServiceUnavailable, match=said):
            await start_within(create_consumer(bus, group=None, client_id="test"), bus)
        with pytest.raises(ServiceUnavailable, match=said):
            await asyncio.to_thread(lambda: admin.connect(bus).__enter__())
        finding = await asyncio.to_thread(check_broker, Config(bus=bus))
    assert finding.status == "fail"
    assert "advertised.listeners" in finding.advice


@pytest.mark.parametrize("advertised", [(OWN,), (), (("broker.invalid", 9), OWN), (("localhost", 0),)], ids=str)
async def test_one_listener_that_is_reached_or_none_yet_is_ready(advertised):
    async with broker(*advertised) as bus, asyncio.timeout(60):
        await readiness.await_broker_async(bus, Deadline(10.0))
        assert (await asyncio.to_thread(check_broker, Config(bus=bus))).status == "ok"


def test_an_answer_that_does_not_come_is_no_traceback(monkeypatch):
    class Admin:
        def close(self) -> None:
            pass

    monkeypatch.setattr(admin.sync_clients, "connect", lambda *_, **__: Admin())
    for error in (KafkaTimeoutError, KafkaConnectionError, NodeNotReadyError):
        with pytest.raises(ServiceUnavailable, match="no answer from"), admin.connect(Bus()):
            raise error
