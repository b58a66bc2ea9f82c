"""The page's HTTP server: files, views as JSON, screenshots, and a WebSocket of what changes.

=============  ==================================================================================================
consumes       a :class:`~console.views.page.source.RunSource`: a run's topics and store, or a bundle
produces       feedback of viewers with the write right, through an intake; without one it answers GET and HEAD only.
               Such viewers may also take rollouts over
waits for      viewers; a live source is read only while the page has one
unblocked by   a viewer
=============  ==================================================================================================
"""

import asyncio
import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import structlog
from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler

from console.runs.run_state import RunState
from console.views.page.assets import Asset, media_type_of
from console.views.page.feedback_intake import MAX_BODY, FeedbackIntake
from console.views.page.guard import WRITTEN, Guard, add_headers
from console.views.page.header import page_header
from console.views.page.page_metrics import CONTENT_TYPE, PageMetrics
from console.views.page.run_catalog import OwnRuns, RunCatalog
from console.views.page.run_export import RunExports
from console.views.page.run_pool import RunPool, ShownRuns
from console.views.page.source import NotFound, RunSource
from console.views.page.take_over_route import TakeOverRoute
from console.views.page.views import Query
from console.views.page.wall import SlotTile
from dart_streams.background import run_beside
from dart_streams.errors import AccessRefused, ServiceUnavailable, UserError

BODY_TIMEOUT_S = 10.0
PUSH_S = 0.4
"""Interval between messages to a tab; changes in between are sent together."""
SHA256 = re.compile(r"[0-9a-f]{64}")
PARTIAL = web.RequestKey("partial", bool)
"""Whether the records of a request's run were not all read."""
IMMUTABLE = "private, max-age=31536000, immutable"

log = structlog.get_logger()


class PageServer:
    """The routes of the page; without an ``intake`` it takes no feedback, without a ``catalog`` it opens no other run.

    The parameters ``run`` and ``against`` of a request name the run and the one that it is compared with.
    """

    def __init__(
        self,
        source: RunSource,
        guard: Guard,
        files: Mapping[str, Asset],
        other: RunSource | None = None,
        intake: FeedbackIntake | None = None,
        catalog: RunCatalog | None = None,
    ) -> None:
        self.intake = intake
        self.guard = guard
        self.files = files
        own = [source, *([other] if other is not None else [])]
        self.pool = RunPool(own, catalog or OwnRuns(*own))
        self.exports = RunExports(files)
        self.metrics = PageMetrics()

    def application(self) -> web.Application:
        """Return the application: the guard checks every request before its route."""
        checks = [self.metrics.middleware(), self.guard.middleware(), errors_as_json]
        app = web.Application(middlewares=checks, client_max_size=MAX_BODY)
        app.router.add_get("/metrics", self.measure)
        app.router.add_get("/api/live", self.live)
        app.router.add_get("/api/rights", self.rights)
        app.router.add_get("/api/runs", self.runs)
        if self.intake is not None:
            app.router.add_post(WRITTEN, self.take)
            app.router.add_get(
                "/api/take-over", TakeOverRoute(self.pool.first.source, self.guard, self.intake.author).open
            )
        app.router.add_get("/api/export", self.export)
        app.router.add_get("/api/{view}", self.answer)
        app.router.add_get("/export/run", self.download)
        app.router.add_get("/export/{name}", self.lines)
        app.router.add_get("/screenshot/{sha256}", self.screenshot)
        app.router.add_get("/{file:.*}", self.file)
        app.on_cleanup.append(self.close)
        return app

    async def close(self, _: web.Application) -> None:
        """Give up an export, and close the runs beside the page's own."""
        await self.exports.close()
        await self.pool.close()

    async def file(self, request: web.Request) -> web.Response:
        """Answer with one of the page's files."""
        return answer_file(self.files, request.path)

    async def measure(self, _: web.Request) -> web.Response:
        """Answer with the server's own metrics; a scrape is no viewer, so it reads no topic."""
        self.metrics.runs = len(self.pool.own) + len(self.pool.beside)
        return web.Response(body=self.metrics.render().encode(), headers={"Content-Type": CONTENT_TYPE})

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with a view as JSON."""
        with self.pool.use(request.query) as shown:
            shown.note_viewer()
            await shown.wait_read()
            request[PARTIAL] = not shown.is_read
            answer = await shown.views.answer(request.match_info["view"], request.query)
            return json_response(answer)

    async def runs(self, _: web.Request) -> web.Response:
        """Answer with the runs that can be opened, and the ids of the page's own ones."""
        own = [run.id for run in self.pool.own]
        return json_response({"rows": await self.pool.catalog.rows(), "own": own, "beside": list(self.pool.beside)})

    async def export(self, request: web.Request) -> web.Response:
        """Answer with the state of an export of the run ``id``; it begins if it was not made."""
        hold = functools.partial(self.pool.use, {"run": request.query.get("id", "")})
        with hold() as shown:
            return json_response(await self.exports.ask(shown.run.id, hold, request.query.get("kind", "")))

    async def download(self, request: web.Request) -> web.FileResponse:
        """Answer with a ready export, whose size is known."""
        made = self.exports.fetch(request.query.get("id", ""), request.query.get("kind", ""))
        headers = {
            "Content-Disposition": f'attachment; filename="{made.download_name()}"',
            "Content-Type": "application/octet-stream",
        }
        return web.FileResponse(made.file, headers=headers)

    async def rights(self, request: web.Request) -> web.Response:
        """Answer with what this viewer may do."""
        right = self.guard.right
        if self.intake is None or right is None or not right.knows(request) or not self.pool.is_first(request.query):
            return web.json_response({"feedback": False})
        return web.json_response({"feedback": True, "author": self.intake.author})

    async def take(self, request: web.Request) -> web.Response:
        """Publish a viewer's feedback; the guard has checked the right to."""
        assert self.intake is not None
        if not self.pool.is_first(request.query):
            first = self.pool.first.id
            raise UserError(f"this page takes feedback on {first} only: `dart-streams ui RUN --feedback` for another")
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the feedback did not arrive in time") from None
        except web.HTTPRequestEntityTooLarge:
            raise web.HTTPRequestEntityTooLarge(
                MAX_BODY, text=f"a feedback has at most {MAX_BODY // 1024} KiB"
            ) from None
        event = await self.intake.take(body)
        return json_response(event, status=201)

    async def lines(self, request: web.Request) -> web.StreamResponse:
        """Answer with all matches of a filter as JSON lines, encoded in parts at the pace of the client."""
        name = request.match_info["name"]
        with self.pool.use(request.query) as shown:
            shown.note_viewer()
            parts = await shown.views.lines(name, request.query)
            headers = {
                "Content-Disposition": f'attachment; filename="{name}.jsonl"',
                "Content-Type": "application/x-ndjson",
            }
            response = add_headers(web.StreamResponse(headers=headers))
            await response.prepare(request)
            for part in parts if request.method == "GET" else ():
                await response.write(part)
            await response.write_eof()
            return response

    async def screenshot(self, request: web.Request) -> web.Response:
        """Answer with a screenshot of either run; the content of a digest never changes."""
        sha256 = request.match_info["sha256"]
        if not SHA256.fullmatch(sha256):
            raise NotFound("a screenshot is named by its sha256")
        with self.pool.use(request.query) as shown:
            image = await read_image(shown.sources, sha256)
        return web.Response(body=image, content_type=media_type_of(image), headers={"Cache-Control": IMMUTABLE})

    async def live(self, request: web.Request) -> web.WebSocketResponse:
        """Send the header and the changes of ``watch``; messages of the client are ignored.

        ``watch`` is ``wall`` (changed slots), or ``trajectory`` with ``id`` (a stamp that changes with it).
        """
        socket = web.WebSocketResponse(heartbeat=20.0, max_msg_size=1024, compress=False)
        await socket.prepare(request)
        self.metrics.tabs += 1
        try:
            async with run_beside(self.push(socket, request.query)):
                async for message in socket:
                    if message.type is WSMsgType.ERROR:
                        break
        finally:
            self.metrics.tabs -= 1
        return socket

    async def push(self, socket: web.WebSocketResponse, query: Query) -> None:
        """Send changes until the tab is closed. A slow tab delays only its own messages, and none are queued."""
        try:
            with self.pool.use(query) as shown:
                await self.push_changes(socket, query, shown)
                gone = shown.gone
            if gone and not socket.closed:
                await end_with(socket, gone)
        except UserError as error:
            await end_with(socket, str(error))
        except (ConnectionError, RuntimeError):
            return  # The tab is closed.
        except Exception:
            log.exception("live page stopped")
            await socket.close()

    async def push_changes(self, socket: web.WebSocketResponse, query: Query, shown: ShownRuns) -> None:
        """Send changes until the tab or a run is closed."""
        before: dict[str, SlotTile] = {}
        source = shown.run.source
        while not socket.closed:
            self.pool.close_removed()
            if shown.gone:
                return
            shown.note_viewer()
            header = msgspec.structs.replace(page_header(source), ready=shown.is_read)
            message: dict[str, Any] = {"header": header}
            if query.get("watch") == "wall":
                tiles = shown.views.grid.update(source.state)
                message["slots"] = [tile for tile in tiles if before.get(tile.slot) != tile]
                before = {tile.slot: tile for tile in tiles}
            elif query.get("watch") == "trajectory":
                message["stamp"] = stamp_of(source.state, query.get("id", ""))
            await socket.send_str(msgspec.json.encode(message).decode())
            await asyncio.sleep(PUSH_S)


def stamp_of(state: RunState, identity: str) -> str:
    """Return a text that changes with a trajectory."""
    groups = state.groups_of.get(identity, ())
    counts = len(groups), sum(len(state.trained_with.get(name, ())) for name in groups)
    given = len(state.feedback_on.get(identity, ()))
    return f"{state.newest_step.get(identity, -1)}/{identity in state.trajectories}/{counts}/{given}"


async def end_with(socket: web.WebSocketResponse, reason: str) -> None:
    """Send the reason why a tab gets no more messages, and close its socket."""
    with contextlib.suppress(ConnectionError, RuntimeError):  # The tab is closed.
        await socket.send_str(msgspec.json.encode({"gone": reason}).decode())
        await socket.close()


async def read_image(sources: Sequence[RunSource], sha256: str) -> bytes:
    """Return a screenshot from the first run that has it."""
    *others, last = sources
    for source in others:
        with contextlib.suppress(NotFound):
            return await source.screenshot(sha256)
    return await last.screenshot(sha256)


def json_response(value: Any, status: int = 200) -> web.Response:
    """Return a value as JSON."""
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def answer_file(files: Mapping[str, Asset], path: str) -> web.Response:
    """Answer with one of the files, which browsers check for changes each time."""
    asset = files.get(path)
    if asset is None:
        return web.Response(status=404, text="no such page")
    cached = {"Cache-Control": "no-cache"}
    return web.Response(body=asset.data, content_type=asset.media_type, charset="utf-8", headers=cached)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors as JSON: 404 for an unknown id or view, 503 for a service that does not answer.

    Other errors of feedback are the sender's, with status 400. ``X-Run-Read: no`` marks an answer, and an error, of
    a run whose records were not all read.
    """
    try:
        response = await handler(request)
    except UserError as error:
        refused = request.method == "POST" and not isinstance(error, (ServiceUnavailable, AccessRefused))
        status = 404 if isinstance(error, NotFound) else 400 if refused else 503
        response = web.json_response({"error": str(error)}, status=status)
    if request.get(PARTIAL):
        response.headers["X-Run-Read"] = "no"
    return response
