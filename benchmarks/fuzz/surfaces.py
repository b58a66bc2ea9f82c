"""The surfaces: what reads bytes of others, samples of them, and the errors that reading them may raise."""

import asyncio
import contextlib
import io
import json
import zipfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from aiohttp import web

import topics
from dart_streams.bus.codec import SCHEMA, Undecodable, decode
from dart_streams.config import Config
from dart_streams.console.bundles import restore
from dart_streams.console.runs import bundle as bundles
from dart_streams.console.runs.run_folder import folder_of
from dart_streams.console.views.page.assets import load_assets
from dart_streams.console.views.page.bundle_source import BundleSource
from dart_streams.console.views.page.guard import Guard
from dart_streams.console.views.page.server import PageServer
from dart_streams.errors import UserError
from workers.env.backends.desktop import documents
from workers.env.backends.osworld.machine import Machine, MachineEndpoint
from workers.env.environment import EnvironmentFault

GOLDEN = Path(__file__).parents[2] / "tests/unit/golden"
BUNDLE = GOLDEN / "bundle.v1.dart"
ANSWER_S = 20.0
MACHINE_CALLS = (("screenshot",), ("screen_size",), ("accessibility",), ("list_directory", "/x"), ("file", "/x"))
VIEWS = (
    *(
        "run",
        "wall",
        "trajectories",
        "trajectory?id=t&step=0",
        "prompt?id=t&step=0",
        "group?id=g",
        "steps",
        "step?id=1",
    ),
    *(
        "metrics",
        "queue",
        "tasks",
        "task?id=t",
        "time",
        "lag",
        "log?topic=actions&q=a",
        "find?id=t",
        "search?q=a",
        "report",
    ),
)
TOKEN = "fuzz"

Play = Callable[[bytes], Awaitable[None]]


class Surface(NamedTuple):
    """``opened`` yields what reads a sample; ``allowed`` errors are right. A sample has at most ``longest`` bytes."""

    samples: Callable[[], list[bytes]]
    opened: Callable[[Path], contextlib.AbstractAsyncContextManager[Play]]
    allowed: tuple[type[Exception], ...] = ()
    longest: int = 1 << 20


def golden_records() -> list[bytes]:
    """Return each golden record, after a line with its topic."""
    files = sorted(GOLDEN.glob("*.json"))
    return [f"{file.name.partition('.v')[0]}\n{json.loads(file.read_bytes())['value']}".encode() for file in files]


@contextlib.asynccontextmanager
async def decode_records(_: Path) -> AsyncIterator[Play]:
    """Decode a record of the topic in its first line, or of any."""

    async def play(sample: bytes) -> None:
        name, _, value = sample.partition(b"\n")
        topic = topics.BY_NAME.get(name.decode(errors="replace")) or topics.ALL[zlib.crc32(name) % len(topics.ALL)]
        decode(topic, value, [(SCHEMA, topic.schema.encode())])

    yield play


def saved_documents() -> list[bytes]:
    """Return the contents of saved documents, and the documents as they are."""
    made = (
        documents.write_spreadsheet([["Item", "Price"], ["Tea", 2.5], ["Cake", 4]]),
        documents.write_text_document(["A letter", "of two paragraphs"]),
        documents.write_presentation("A title"),
    )
    return [*made, *(zipfile.ZipFile(io.BytesIO(one)).read("content.xml") for one in made)]


@contextlib.asynccontextmanager
async def parse_documents(_: Path) -> AsyncIterator[Play]:
    """Read cells and paragraphs of a document, or of one with this content."""

    async def play(sample: bytes) -> None:
        if not sample.startswith(b"PK"):
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("content.xml", sample)
            sample = buffer.getvalue()
        documents.cells_of(sample)
        documents.paragraphs_of(sample)

    yield play


def golden_bundles() -> list[bytes]:
    """Return the golden bundles, and the directory of one as JSON."""
    return [*(file.read_bytes() for file in sorted(GOLDEN.glob("*.dart"))), directory_of(BUNDLE.read_bytes())[1]]


def directory_of(content: bytes) -> tuple[bytes, bytes]:
    """Return the sections of a bundle, and its directory as JSON."""
    tail = len(bundles.MAGIC) + 4
    length = int.from_bytes(content[-tail : -tail + 4], "little")
    return content[: -tail - length - len(bundles.SKIPPABLE) - 4], content[-tail - length : -tail]


@contextlib.asynccontextmanager
async def read_bundles(folder: Path) -> AsyncIterator[Play]:
    """Read a bundle as the page does, and write its folder as ``restore`` does; a directory gets golden sections."""
    sections, _ = directory_of(BUNDLE.read_bytes())
    file = folder / "sample.dart"

    async def play(sample: bytes) -> None:
        if sample.startswith(b"{"):
            end = len(sample).to_bytes(4, "little") + bundles.MAGIC
            frame = bundles.SKIPPABLE + (len(sample) + len(end)).to_bytes(4, "little")
            sample = sections + frame + sample + end
        file.write_bytes(sample)
        opened = bundles.Bundle(file)
        with contextlib.suppress(UserError):
            bundles.verify(file)
        with contextlib.suppress(UserError):
            own = opened.manifest.run.removeprefix("dart.")
            opened.manifest = msgspec.structs.replace(opened.manifest, prefix=f"dart.{own}.")
            config = restore.restored_config(opened, Config(), folder)
            if not (made := folder_of(config, config.run.id)).path.exists():
                restore.make_folder(made, config, opened)
            restore.write_files(made, opened)
        source = BundleSource(opened)
        try:
            await source.read().report_inputs()
        finally:
            await source.close()

    yield play


def machine_answers() -> list[bytes]:
    """Return answers of a machine to each of :data:`MACHINE_CALLS`."""
    tree = {"type": "directory", "name": "x", "children": [{"type": "file", "name": "y"}]}
    texts = ({"width": 1920, "height": 1080}, {"AT": "<desktop-frame/>"}, {"directory_tree": tree}, "a file")
    bodies = (b"\x89PNG\r\n\x1a\n" + bytes(64), *(json.dumps(one).encode() for one in texts))
    head = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n"
    kinds = ("image/png", *["application/json"] * 4)
    return [head.format(kind, len(body)).encode() + body for kind, body in zip(kinds, bodies, strict=True)]


@contextlib.asynccontextmanager
async def ask_machine(_: Path) -> AsyncIterator[Play]:
    """Ask a machine whose server answers with the sample, each call in turn."""
    answers: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers[-1])
            writer.write_eof()
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        endpoint = MachineEndpoint(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

        async def play(sample: bytes) -> None:
            answers[:] = [sample]
            name, *arguments = MACHINE_CALLS[zlib.crc32(sample) % len(MACHINE_CALLS)]
            async with Machine(endpoint, ANSWER_S) as machine:
                await getattr(machine, name)(*arguments)

        yield play


def page_requests() -> list[bytes]:
    """Return a request for each view, for a file, a screenshot and the socket."""
    head = f"HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
    paths = (*(f"/api/{view}" for view in VIEWS), "/", "/app.js", f"/screenshot/{'0' * 64}", "/export/steps?csrf=a")
    socket = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    return [
        *(f"GET {path} {head}\r\n".encode() for path in paths),
        f"GET /api/live?watch=wall {head}{socket}\r\n".encode(),
    ]


@contextlib.asynccontextmanager
async def request_page(_: Path) -> AsyncIterator[Play]:
    """Send a request to the page of a golden bundle; a server's error is a finding."""
    guard = Guard(frozenset(), 1, tls=False, token=TOKEN)
    runner = web.AppRunner(
        PageServer(BundleSource(bundles.Bundle(BUNDLE)).read(), guard, load_assets(None)).application()
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()

    async def play(sample: bytes) -> None:
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(sample)
                writer.write_eof()
                async with asyncio.timeout(ANSWER_S):
                    status = await reader.readline()
                    if b" 5" in status[8:10]:
                        raise RuntimeError(f"the page answers {status!r} {await reader.read(2000)!r}")
        finally:
            writer.close()

    try:
        yield play
    finally:
        await runner.cleanup()


SURFACES = {
    "records": Surface(golden_records, decode_records, (Undecodable,), 1 << 21),
    "documents": Surface(saved_documents, parse_documents),
    "bundles": Surface(golden_bundles, read_bundles, (UserError,)),
    "answers": Surface(machine_answers, ask_machine, (EnvironmentFault,)),
    "requests": Surface(page_requests, request_page, (), 1 << 18),
}
