"""Answers of machines, desktops, browsers and phones: samples of each kind, and what asks for them."""

import asyncio
import contextlib
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec

from dart_desktops.desktop.problem import SessionOutcome, parse_elements
from dart_desktops.desktop.sandbox import Sandbox
from dart_desktops.osworld.machine import Machine, MachineEndpoint
from dart_phones.process import ANSWER_BYTES, PhoneProcess
from workers.env.backends.miniwob.devtools import MESSAGE_BYTES, DevTools
from workers.env.environment import EnvironmentFault

ANSWER_S = 20.0
ALLOWED = (EnvironmentFault, msgspec.DecodeError, UnicodeDecodeError)
"""A desktop's outcome is decoded by its environment, whose errors are faults (workers/env/fault_boundary.py)."""
MACHINE_CALLS = (("screenshot",), ("screen_size",), ("accessibility",), ("list_directory", "/x"), ("file", "/x"))
PACKED = b"packed "
"""Before the kind of an answer that a sample has compressed, as its file would be too large."""
TREE = (
    '<desktop-frame xmlns:cp="https://accessibility.ubuntu.example.org/ns/component">'
    '<push-button name="OK" cp:screencoord="(10, 20)" cp:size="(30, 40)">a</push-button></desktop-frame>'
)


def answer_samples() -> list[bytes]:
    """Return answers of each kind: those that are no machine's have their kind in a first line."""
    outcome = {"exit_code": None, "output": "a", "state": {"/x": "YQ==", "/y": ["z"], "/z": None}}
    desktop = [http_answer("application/json", json.dumps(outcome).encode()), http_answer("text/xml", TREE.encode())]
    messages = (
        b'{"method":"Page.loadEventFired","sessionId":"s"}\n{"id":1,"result":{"frameId":"f"}}\n'
        b'{"id":2,"result":{"data":"YQ=="},"sessionId":"s"}\n',
        b'{"method":"Page.javascriptDialogOpening","params":{"defaultPrompt":"a"},"sessionId":"s"}\n'
        b'{"method":"Page.frameNavigated","params":{"frame":{"id":"f"}},"sessionId":"s"}\n'
        b'{"id":1,"error":{"code":-1,"message":"Inspected target navigated or closed"}}\n',
    )
    phone = (b'{"image":"YQ==","state":{"notes":["a"]}}\n', b'{"elements":[{"role":"Button","name":"OK"}]}\n')
    kinds = {b"desktop": desktop, b"browser": messages, b"phone": phone}
    return [*machine_answers(), *(kind + b"\n" + one for kind, answers in kinds.items() for one in answers)]


def machine_answers() -> list[bytes]:
    """Return answers of a machine to each of :data:`MACHINE_CALLS`, as they are and compressed."""
    tree = {"type": "directory", "name": "x", "children": [{"type": "file", "name": "y"}]}
    texts = ({"width": 1920, "height": 1080}, {"AT": "<desktop-frame/>"}, {"directory_tree": tree}, "a file")
    bodies = (b"\x89PNG\r\n\x1a\n" + bytes(64), *(json.dumps(one).encode() for one in texts))
    plain = [http_answer("application/json", body) for body in bodies]
    packed = [http_answer("application/json\r\nContent-Encoding: gzip", gzip.compress(body)) for body in bodies]
    return plain + packed


def http_answer(kind: str, body: bytes) -> bytes:
    """Return an answer of a server."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nX-Over: 0\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


@contextlib.asynccontextmanager
async def ask_answers(folder: Path) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
    """Ask a machine, a desktop, a browser or a phone that answers with the sample."""
    answers: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers[-1])
            writer.write_eof()
            await writer.drain()
        writer.close()

    phone, path = PhoneProcess(ANSWER_S), str(folder / "http")
    machines, desktops = await asyncio.start_server(answer, "127.0.0.1"), await asyncio.start_unix_server(answer, path)
    endpoint = MachineEndpoint(url=f"http://127.0.0.1:{machines.sockets[0].getsockname()[1]}")

    async def play(sample: bytes) -> None:
        kind, _, text = sample.partition(b"\n")
        if kind.startswith(PACKED):
            kind = kind.removeprefix(PACKED)
            with contextlib.suppress(zlib.error):
                text = zlib.decompressobj().decompress(text, ANSWER_BYTES)
        answers[:] = [text if kind == b"desktop" else sample]
        if kind == b"desktop":
            await ask_desktop(path, text)
        elif kind == b"browser":
            await ask_browser(text)
        elif kind == b"phone":
            await ask_phone(phone, text)
        else:
            async with Machine(endpoint, ANSWER_S) as machine:
                for name, *arguments in MACHINE_CALLS:
                    with contextlib.suppress(EnvironmentFault):
                        await getattr(machine, name)(*arguments)

    async with machines, desktops:
        yield play
    await phone.stop()


async def ask_desktop(path: str, sample: bytes) -> None:
    """Ask a desktop's server for its outcome or its elements."""
    sandbox: Any = Sandbox(1280, 720, ANSWER_S)
    sandbox.process = scripted_process(1)
    sandbox._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path))
    try:
        if b"xml" in sample[:200]:
            content, _ = await sandbox.request("GET", "elements")
            parse_elements(content.decode())
        else:
            content, _ = await sandbox.request("GET", "outcome")
            outcome = msgspec.json.decode(content, type=SessionOutcome)
            outcome.text("/x")
    finally:
        await sandbox._session.close()


async def ask_browser(sample: bytes) -> None:
    """Load a page, and ask for its screen, in a browser whose messages are the lines of a sample."""
    process = scripted_process(MESSAGE_BYTES)
    devtools = DevTools(process.stdout, process.stdin, ANSWER_S)
    calls = (devtools.navigate("s", "about:blank"), devtools.call("Page.captureScreenshot", "s"))
    asked = asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(0)  # The calls are sent before the first message is read.
    process.stdout.feed_data(sample.replace(b"\n", b"\0"))
    process.stdout.feed_eof()
    try:
        loaded, screen = await asked
    finally:
        await devtools.close()
    for result in (loaded, screen):
        if isinstance(result, BaseException):
            raise result
    str(screen["data"])


async def ask_phone(phone: PhoneProcess, sample: bytes) -> None:
    """Ask a phone that answers with a sample."""
    process = phone.process = scripted_process(ANSWER_BYTES)
    process.stdout.feed_data(sample)
    process.stdout.feed_eof()
    await phone.request("step")


def scripted_process(limit: int) -> Any:
    """Return a process without output, whose input goes nowhere. It has not ended, and never does."""

    async def drain() -> None:
        """Do as if all was sent."""

    stdin = SimpleNamespace(write=lambda _: None, drain=drain, close=lambda: None)
    stdout = asyncio.StreamReader(limit=limit)
    return SimpleNamespace(stdout=stdout, stdin=stdin, returncode=0, wait=asyncio.Event().wait)
