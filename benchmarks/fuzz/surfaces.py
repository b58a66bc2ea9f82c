"""The surfaces: what reads bytes of others, samples of them, and the errors that reading them may raise."""

import asyncio
import contextlib
import io
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec
from aiohttp import web

from benchmarks.fuzz import answers, records
from benchmarks.fuzz.bundles import (
    GROUP,
    TRAJECTORY,
    bundle_samples,
    golden_contents,
    pack_contents,
    read_bundles,
)
from console.runs import feedback
from console.runs.bundle import Bundle
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from console.views.page.feedback_intake import FeedbackIntake
from console.views.page.guard import Guard, WriteRight
from console.views.page.server import PageServer
from dart_desktops.desktop import documents
from dart_streams.errors import UserError

ANSWER_S = 20.0
VIEWS = (
    "run",
    "wall",
    "trajectories",
    "trajectory?id={t}&step=0",
    "prompt?id={t}&step=0",
    "group?id={g}",
    "steps",
    "step?id=12",
    "metrics",
    "queue",
    "tasks",
    "task?id=t",
    "time",
    "lag",
    "log?topic=actions&q=a",
    "find?id={g}",
    "search?q=a",
    "report",
    "compare?t=1",
    "dead-letters",
)
TOKEN = "fuzz"

Play = Callable[[bytes], Awaitable[None]]


class Surface(NamedTuple):
    """``opened`` yields what reads a sample; ``allowed`` errors are right. A sample has at most ``longest`` bytes."""

    samples: Callable[[], list[bytes]]
    opened: Callable[[Path], contextlib.AbstractAsyncContextManager[Play]]
    allowed: tuple[type[Exception], ...] = ()
    longest: int = 1 << 20


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
    """Read cells and paragraphs of a document, or of one with this content.

    OSWorld's formats are out of reach: their readers belong to its evaluators, in an environment and a sandbox of
    their own.
    """

    async def play(sample: bytes) -> None:
        if not sample.startswith(b"PK"):
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("content.xml", sample)
            sample = buffer.getvalue()
        documents.cells_of(sample)
        documents.paragraphs_of(sample)

    yield play


def page_requests() -> list[bytes]:
    """Return a request for each view, for a file, a screenshot and the socket, and such that give feedback."""
    head = f"HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
    paths = (*(f"/api/{view}" for view in VIEWS), "/", "/app.js", f"/screenshot/{'0' * 64}", "/export/steps?csrf=a")
    socket = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    said = (
        {"kind": "judgement", "judgement": "partial"},
        {"kind": "note", "note": "The label is cut.", "step": 0},
        {"kind": "correction", "step": 0, "action": "click(start_box='(84,120)')", "note": "here"},
    )
    bodies = [msgspec.json.encode({"trajectory_id": TRAJECTORY, "author": "ann", **one}).decode() for one in said]
    return [
        *(f"GET {path.format(t=TRAJECTORY, g=GROUP)} {head}\r\n".encode() for path in paths),
        f"GET /api/live?watch=wall {head}{socket}\r\n".encode(),
        *(
            f"POST /api/feedback {head}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            for body in bodies
        ),
    ]


def opened_page(folder: Path) -> PageServer:
    """Return the page of a bundle with every section. It takes feedback as that of a run does."""
    file = folder / "shown.dart"
    file.write_bytes(pack_contents(golden_contents()))
    source = BundleSource(Bundle(file)).read()
    source.config = msgspec.structs.replace(
        source.config, feedback=msgspec.structs.replace(source.config.feedback, enabled=True)
    )
    source.kind = "run"
    guard = Guard(frozenset(), 1, tls=False, token="read", right=WriteRight(1, TOKEN))
    return PageServer(source, guard, load_assets(None), intake=FeedbackIntake(source, "ann"))


@contextlib.asynccontextmanager
async def request_page(folder: Path) -> AsyncIterator[Play]:
    """Send a request to a page; a server's error is a finding. Feedback goes to no broker: its event is encoded."""
    runner = web.AppRunner(opened_page(folder).application())
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

    async def published(_: object, events: list[msgspec.Struct]) -> None:
        msgspec.json.encode(events)

    try:
        with mock.patch.object(feedback, "publish", published):
            yield play
    finally:
        await runner.cleanup()


SURFACES = {
    "records": Surface(records.record_samples, records.apply_records, records.ALLOWED, 1 << 21),
    "documents": Surface(saved_documents, parse_documents),
    "bundles": Surface(bundle_samples, read_bundles, (UserError,)),
    "answers": Surface(answers.answer_samples, answers.ask_answers, answers.ALLOWED),
    "requests": Surface(page_requests, request_page, (), 1 << 18),
}
