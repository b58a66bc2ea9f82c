"""Who may ask the lease server: whoever has its token, or without one a program of this machine, and no web page."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from dart_desktops.server.leases import LeaseTable
from dart_desktops.server.server import LeaseServer

TOKEN = "the-token"


@contextlib.asynccontextmanager
async def client(token: str) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(LeaseServer([], [], token, 60.0).application())) as made:
        yield made


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
    ],
)
async def test_without_a_token_no_web_page_leases_a_desktop(headers: dict[str, str]):
    async with client("") as asking:
        for method, path in (("POST", "/leases"), ("GET", "/leases"), ("DELETE", "/leases/x")):
            assert (await asking.request(method, path, headers=headers)).status == 403


async def test_without_a_token_programs_of_this_machine_are_answered():
    async with client("") as asking:
        own = {"Origin": str(asking.make_url("/")).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
        for headers in ({}, own):
            assert (await asking.get("/leases", headers=headers)).status == 200
            assert (await asking.post("/leases", headers=headers)).status == 503, "there is none, and it may ask"


@pytest.mark.parametrize("given", [b"\xff\xfe", "tökén".encode(), "日本".encode(), b"the-token\xff", b"wrong", b""])
async def test_a_token_of_any_bytes_is_compared_and_refused(given: bytes):
    async with client(TOKEN) as asking:
        reader, writer = await asyncio.open_connection("127.0.0.1", asking.port)
        writer.write(b"GET /leases HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + given + b"\r\n\r\n")
        async with asyncio.timeout(60):
            assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
    lease = LeaseTable().grant(0, 60.0, 0.0)
    assert not lease.opened_by(given.decode("utf-8", "surrogateescape"))
