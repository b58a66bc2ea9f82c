"""The client of a machine, against servers that answer what they should not, late, or not at all."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from aiohttp import web

from dart_desktops.osworld.environment import wait_ready
from dart_desktops.osworld.machine import PNG, FileMissing, Machine, MachineEndpoint
from dart_streams.deadline import Deadline
from tests.answering import Handler, answering
from workers.env.backends.connection import StatusFault
from workers.env.environment import EnvironmentFault

SECRET = "a secret token"


@contextlib.asynccontextmanager
async def machine(handler: Handler, call_timeout_s: float = 60.0, token: str = "") -> AsyncIterator[Machine]:
    """A client of a server that answers every request by ``handler``."""
    async with answering(handler) as url, Machine(MachineEndpoint(url=url, token=token), call_timeout_s) as client:
        yield client


def always(answer: Callable[[], web.StreamResponse]) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        return answer()

    return handle


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda: web.Response(text="<html>starting</html>"), "no image: '<html>starting"),
        (lambda: web.Response(body=b""), "no image"),
        (lambda: web.Response(text="not ready", status=503), "status 503: not ready"),
        (lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "status 302"),
    ],
)
async def test_what_is_no_screen_is_a_fault_that_says_what_came(answer, why):
    async with machine(always(answer)) as client:
        with pytest.raises(EnvironmentFault, match=why):
            await client.screenshot()


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[" * 5000,
        f"[{'[],' * 2**19}0]",
        "[]",
        '{"width": 0, "height": 3}',
        '{"width": "a", "height": 3}',
        "null",
    ],
)
async def test_an_answer_of_another_form_is_a_fault(text):
    async with machine(always(lambda: web.Response(text=text))) as client:
        with pytest.raises(EnvironmentFault, match="/screen_size returns"):
            await client.screen_size()


async def test_a_compressed_answer_is_not_expanded():
    bomb = web.Response(body=gzip.compress(bytes(2**26)), headers={"Content-Encoding": "gzip"})
    async with machine(always(lambda: bomb)) as client:
        with pytest.raises(EnvironmentFault, match="/screen_size returns"):
            await client.screen_size()


async def test_a_command_whose_answer_is_cut_off_was_sent_once():
    seen: list[bytes] = []

    async def cut(request: web.Request) -> web.StreamResponse:
        seen.append(await request.read())
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with machine(cut) as client:
        with pytest.raises(EnvironmentFault, match="/execute"):
            await client.execute(["true"])
        with pytest.raises(EnvironmentFault, match="/setup/launch"):
            await client.launch("true")
    assert [b'"true"' in body for body in seen] == [True, True]


async def test_a_request_is_bounded_by_its_limit_and_by_the_deadline():
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    async with machine(hang, call_timeout_s=0.2) as client, asyncio.timeout(60):
        with pytest.raises(EnvironmentFault, match=r"/screenshot: no answer within 0\.2 s"):
            await client.screenshot()
        now = 0.0
        deadline = Deadline(0.2, lambda: now)
        with pytest.raises(EnvironmentFault, match="/execute: no answer within"):
            await client.execute("true", deadline=deadline)
        now = 0.2
        with pytest.raises(EnvironmentFault, match="no time is left"):
            await client.execute("true", deadline=deadline)


async def test_a_drip_of_bytes_is_bounded_too():
    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await answer.write(PNG)
                await asyncio.sleep(0.02)
        return answer

    async with machine(drip, call_timeout_s=0.3) as client:
        with pytest.raises(EnvironmentFault, match="no answer within"):
            await client.screenshot()


async def test_a_body_is_bounded(monkeypatch):
    monkeypatch.setattr("dart_desktops.osworld.machine.SCREEN_BYTES", 1000)
    async with machine(always(lambda: web.Response(body=PNG + bytes(1000)))) as client:
        with pytest.raises(EnvironmentFault, match="longer than 1000 bytes"):
            await client.screenshot()


async def test_nobody_listening_is_a_fault():
    async with Machine(MachineEndpoint(url="http://127.0.0.1:1")) as client:
        with pytest.raises(EnvironmentFault, match=r"http://127\.0\.0\.1:1/screen_size"):
            await client.screen_size()


async def test_a_closed_client_sends_nothing():
    async with machine(always(lambda: web.Response(text="Linux"))) as client:
        await client.close()
        await client.close()
        with pytest.raises(EnvironmentFault, match="closed"):
            await client.screen_size()


async def test_a_missing_file_is_no_fault():
    async with machine(always(lambda: web.json_response({"error": "File not found"}, status=404))) as client:
        with pytest.raises(FileMissing, match="no /a/b"):
            await client.file("/a/b")
        with pytest.raises(EnvironmentFault, match="status 404") as caught:
            await client.open_file("/a/b")
        assert not isinstance(caught.value, FileMissing)


async def test_a_machine_that_has_ended_is_not_waited_for():
    """One that is not ready yet is, to the deadline."""
    answers = iter([503, 503, 410])

    async def later(_: web.Request) -> web.StreamResponse:
        return web.Response(status=next(answers), text="over")

    async with machine(later) as client:
        with pytest.raises(StatusFault, match="status 410: over"):
            await wait_ready(client, Deadline(60.0))
        assert next(answers, None) is None
    asked, now = 0, 0.0

    async def starting(_: web.Request) -> web.StreamResponse:
        nonlocal asked, now
        asked, now = asked + 1, 30.0 * asked
        return web.Response(text="starting")

    async with machine(starting) as client:
        with pytest.raises(EnvironmentFault, match=r"the machine is not ready: .*'starting'"):
            await wait_ready(client, Deadline(60.0, lambda: now))
        assert asked == 3


async def test_the_token_travels_in_a_header_and_is_in_no_text():
    async def check(request: web.Request) -> web.StreamResponse:
        assert SECRET not in str(request.url)
        if request.headers.get("Authorization") != f"Bearer {SECRET}":
            return web.Response(status=401, text="no token")
        return web.Response(status=500, text="broken")

    async with machine(check, token=SECRET) as client:
        with pytest.raises(EnvironmentFault, match="status 500") as caught:
            await client.screen_size()
        assert SECRET not in f"{caught.value!r} {client.endpoint!r} {client.endpoint}"


async def test_a_file_is_uploaded_whole():
    received: dict[str, bytes] = {}

    async def take(request: web.Request) -> web.StreamResponse:
        form = await request.post()
        received[str(form["file_path"])] = form["file_data"].file.read()
        return web.Response(text="File Uploaded: 3 bytes")

    content = bytes(range(256)) * 1000
    async with machine(take) as client:
        await client.upload("~/a b/ü.bin", content)
    assert received == {"~/a b/ü.bin": content}


def test_an_endpoint_of_json_has_no_unknown_field():
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"url": "http://h", "tokn": "x"}', type=MachineEndpoint)
