"""A server's connections are bounded: half a request holds none for ever, and many of them keep nobody out."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web
from aiohttp.typedefs import Middleware

from console.views.page.guard import Guard
from dart_streams.http_bounds import ConnectionBounds, note_known, serve_bounded
from dart_streams.telemetry.setup import MAX_MESSAGES, RateLimitFilter

WAIT_S = 60.0
FOR_EVER_S = 3600.0
HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
KNOWN = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: known\r\n\r\n"


class Site:
    """A server, and raw connections to it."""

    def __init__(self, port: int, bounds: ConnectionBounds) -> None:
        self.port, self.bounds = port, bounds

    async def send(self, data: bytes) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers = [*getattr(self, "writers", []), writer]
        writer.write(data)
        await writer.drain()
        return reader


async def hello(request: web.Request) -> web.Response:
    if "Authorization" in request.headers:
        note_known(request)
    return web.Response(text="hello")


async def fails(request: web.Request) -> web.Response:
    raise ValueError("a fault of ours")


@contextlib.asynccontextmanager
async def site(most: int = 8, head_s: float = FOR_EVER_S, *middlewares: Middleware) -> AsyncIterator[Site]:
    application = web.Application(middlewares=middlewares)
    application.router.add_get("/", hello)
    application.router.add_get("/fails", fails)
    listener = socket.create_server(("127.0.0.1", 0))
    async with serve_bounded(application, listener, most=most, head_s=head_s) as bounds:
        made = Site(listener.getsockname()[1], bounds)
        yield made
        for writer in getattr(made, "writers", []):
            writer.close()


async def ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(WAIT_S):
            while await reader.read(1000):
                pass


@pytest.mark.parametrize("sent", [b"", b"GET", HALF, b"GET / HTTP/1.1\r\n"])
async def test_a_connection_that_does_not_make_its_request_in_time_is_cut(sent: bytes):
    async with site(head_s=0.05) as served:
        await ended(await served.send(sent))
        assert not served.bounds.open


async def test_many_halves_take_a_bounded_number_of_connections():
    async with site(most=8) as served, ClientSession() as client:
        halves = [await served.send(HALF) for _ in range(40)]
        for _ in range(3):
            async with client.get(f"http://127.0.0.1:{served.port}/") as answer:
                assert await answer.text() == "hello"
        assert len(served.bounds.open) <= 8
        await asyncio.gather(*(ended(half) for half in halves[:32]))


async def test_strangers_make_room_for_who_comes_whatever_they_have_asked():
    """256 connections that were kept open after a whole request each cut a viewer with the cookie for 74 s."""
    async with site(most=3) as served:
        known = await served.send(KNOWN)
        async with asyncio.timeout(WAIT_S):
            assert await known.readuntil(b"hello")
        strangers = [await served.send(REQUEST) for _ in range(6)]
        async with asyncio.timeout(WAIT_S):
            assert b"hello" in await strangers[-1].readuntil(b"hello")
        await asyncio.gather(*(ended(one) for one in strangers[:4]))
        async with ClientSession(headers={"Authorization": "known"}) as client:
            for _ in range(3):
                async with client.get(f"http://127.0.0.1:{served.port}/") as answer:
                    assert await answer.text() == "hello"
        served.writers[0].write(KNOWN)
        async with asyncio.timeout(WAIT_S):
            assert b"hello" in await known.readuntil(b"hello")


@pytest.mark.parametrize(("token", "known"), [("right", True), ("wrong", False)])
async def test_a_viewer_of_the_page_is_known_by_its_token(token: str, known: bool):
    guard = Guard(frozenset({"127.0.0.1"}), 1, tls=False, token="right")
    async with site(8, FOR_EVER_S, guard.middleware()) as served, ClientSession() as client:
        headers = {"Authorization": f"Bearer {token}"}
        async with client.get(f"http://127.0.0.1:{served.port}/", headers=headers) as answer:
            assert (await answer.text() == "hello") is known
            assert (bool(served.bounds.open) and not served.bounds.strangers) is known


async def test_connections_of_known_senders_are_kept_and_one_too_many_is_cut():
    async with site(most=3) as served:
        kept = [await served.send(KNOWN) for _ in range(3)]
        async with asyncio.timeout(WAIT_S):
            assert [await one.readline() for one in kept] == [b"HTTP/1.1 200 OK\r\n"] * 3
        await ended(await served.send(KNOWN))
        assert len(served.bounds.open) == 3
        served.writers[0].write(KNOWN)
        async with asyncio.timeout(WAIT_S):
            assert b"hello" in await kept[0].readuntil(b"hello")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\x00: x\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    ],
)
async def test_a_malformed_request_is_one_line_without_a_traceback(sent: bytes, caplog: pytest.LogCaptureFixture):
    async with site() as served:
        reader = await served.send(sent)
        async with asyncio.timeout(WAIT_S):
            assert b" 400 " in await reader.readline()
        await ended(reader)
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.exc_info, "\n" in record.getMessage()) for record in found] == [(None, False)]
    assert found[0].getMessage().startswith("malformed request: ")


async def test_a_fault_of_ours_keeps_its_traceback(caplog: pytest.LogCaptureFixture):
    async with (
        site() as served,
        ClientSession() as client,
        client.get(f"http://127.0.0.1:{served.port}/fails") as answer,
    ):
        assert answer.status == 500
    assert [record.exc_info is not None for record in caplog.records if record.levelno >= logging.ERROR] == [True]


def test_a_log_of_ever_new_messages_is_bounded():
    limit = RateLimitFilter()
    records = [logging.LogRecord("aiohttp.server", logging.WARNING, "", 0, f"no {n}", (), None) for n in range(1000)]
    assert sum(limit.filter(record) for record in records) == MAX_MESSAGES
    assert limit.filter(logging.LogRecord("another", logging.WARNING, "", 0, "one", (), None))
