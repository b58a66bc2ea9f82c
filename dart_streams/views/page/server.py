"""The page's HTTP server: files, views as JSON, screenshots, and a WebSocket of what changes.

=============  ==================================================================================================
consumes       a :class:`~dart_streams.views.page.source.RunSource`: a run's topics and store, or a bundle
produces       nothing: it answers GET and HEAD
waits for      viewers; a live source is read only while there is one
unblocked by   a viewer
=============  ==================================================================================================
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog
from aiohttp import WSMsgType, web

from dart_streams.errors import UserError
from dart_streams.views.page import episodes, log_view, time_curves, training
from dart_streams.views.page.assets import Asset, media_type_of
from dart_streams.views.page.guard import Guard
from dart_streams.views.page.header import header
from dart_streams.views.page.source import NotFound, RunSource
from dart_streams.views.page.wall import SlotGrid, SlotTile

Query = Mapping[str, str]
View = Callable[[Query], Awaitable[Any]]

PUSH_S = 0.4
"""Between two messages to a tab: what changed in between goes together."""
HEX = re.compile(r"[0-9a-f]{64}")
NUMBER = re.compile(r"\d{1,9}")
LONGEST_ID = 600
FOR_EVER = "private, max-age=31536000, immutable"

log = structlog.get_logger()


class PageServer:
    """The routes; each view takes the query and returns what is encoded."""

    def __init__(self, source: RunSource, guard: Guard, files: Mapping[str, Asset]) -> None:
        self.source = source
        self.guard = guard
        self.files = files
        self.grid = SlotGrid(source.config)
        self.viewers = 0
        self.views: dict[str, View] = {
            "run": self.run_view,
            "wall": self.wall,
            "trajectories": self.trajectories,
            "trajectory": self.trajectory,
            "prompt": self.prompt,
            "group": self.group,
            "steps": self.steps,
            "step": self.step,
            "tasks": self.tasks,
            "task": self.task,
            "time": self.time,
            "lag": self.lag,
            "log": self.log,
            "dead-letters": self.dead_letters,
            "find": self.find,
        }

    def application(self) -> web.Application:
        """Return the application: one check before every route."""
        app = web.Application(middlewares=[self.guard.middleware()])
        app.router.add_get("/api/live", self.live)
        app.router.add_get("/api/{view}", self.answer)
        app.router.add_get("/screenshot/{sha256}", self.screenshot)
        app.router.add_get("/{file:.*}", self.file)
        return app

    async def file(self, request: web.Request) -> web.Response:
        """Answer with one of the page's files."""
        asset = self.files.get(request.path)
        if asset is None:
            return web.Response(status=404, text="no such page")
        cached = {"Cache-Control": "no-cache"}
        return web.Response(body=asset.data, content_type=asset.media_type, charset="utf-8", headers=cached)

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with a view as JSON; what went wrong is a sentence."""
        view = self.views.get(request.match_info["view"])
        if view is None:
            return problem(404, "no such view")
        self.source.note_viewer()
        try:
            found = await view(request.query)
        except NotFound as error:
            return problem(404, str(error))
        except UserError as error:
            return problem(503, str(error))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def screenshot(self, request: web.Request) -> web.Response:
        """Answer with a screenshot, which never changes under its digest."""
        sha256 = request.match_info["sha256"]
        if not HEX.fullmatch(sha256):
            return problem(404, "a screenshot is named by its sha256")
        try:
            image = await self.source.screenshot(sha256)
        except NotFound as error:
            return problem(404, str(error))
        except UserError as error:
            return problem(503, str(error))
        return web.Response(body=image, content_type=media_type_of(image), headers={"Cache-Control": FOR_EVER})

    async def live(self, request: web.Request) -> web.WebSocketResponse:
        """Send the header, and what ``watch`` names, whenever it has changed; messages of the client say nothing.

        ``watch`` is ``wall`` (the slots that changed), or ``trajectory`` with ``id`` (a stamp that changes with it).
        """
        socket = web.WebSocketResponse(heartbeat=20.0, max_msg_size=1024, compress=False)
        await socket.prepare(request)
        pusher = asyncio.create_task(self.push(socket, request.query), name="push")
        try:
            async for message in socket:
                if message.type is WSMsgType.ERROR:
                    break
        finally:
            pusher.cancel()
            await asyncio.gather(pusher, return_exceptions=True)
        return socket

    async def push(self, socket: web.WebSocketResponse, query: Query) -> None:
        """Send changes until the tab is gone. A slow tab delays its own messages only: nothing queues up for it."""
        before: dict[str, SlotTile] = {}
        with contextlib.suppress(ConnectionError, RuntimeError):
            while not socket.closed:
                self.source.note_viewer()
                message: dict[str, Any] = {"header": header(self.source)}
                if query.get("watch") == "wall":
                    tiles = self.grid.update(self.source.state)
                    message["slots"] = [tile for tile in tiles if before.get(tile.slot) != tile]
                    before = {tile.slot: tile for tile in tiles}
                elif query.get("watch") == "trajectory":
                    message["stamp"] = self.stamp(query.get("id", ""))
                await socket.send_str(msgspec.json.encode(message).decode())
                await asyncio.sleep(PUSH_S)

    def stamp(self, identity: str) -> str:
        """Return what changes whenever a trajectory does."""
        state = self.source.state
        groups = len(state.groups_of.get(identity, ()))
        return f"{state.newest_step.get(identity, -1)}/{identity in state.trajectories}/{groups}"

    async def run_view(self, _: Query) -> dict[str, Any]:
        """The run's configuration as far as the page needs it."""
        config = self.source.config
        return {
            "header": header(self.source),
            "slots": config.env.workers * config.env.slots,
            "policy": config.policy.model_id,
            "backend": config.env.backend,
            "config": config,
        }

    async def wall(self, _: Query) -> list[SlotTile]:
        """Every slot."""
        return self.grid.update(self.source.state)

    async def trajectories(self, query: Query) -> episodes.TrajectoryPage:
        """A part of the table of trajectories."""
        wanted = {name: query.get(name, "") for name in ("task_id", "outcome", "purpose", "group_id")}
        cursor = query.get("cursor", "")
        return episodes.table(self.source.state, wanted, number(cursor) if cursor else None)

    async def trajectory(self, query: Query) -> episodes.TrajectoryView:
        """A trajectory step by step."""
        identity = named(query)
        observations = await self.source.steps(identity)
        segments = await self.source.segments(identity)
        return episodes.trajectory(identity, self.source.state, observations, segments, self.source.config.policy)

    async def prompt(self, query: Query) -> Any:
        """The prompt of a step."""
        observations = await self.source.steps(named(query))
        return episodes.prompt(observations, number(query.get("step", "")), self.source.config.policy)

    async def group(self, query: Query) -> training.GroupView:
        """A group."""
        return training.group(named(query), self.source.state, self.source.config)

    async def steps(self, _: Query) -> training.MetricCurves:
        """The metrics of all optimiser steps."""
        return training.train_steps(self.source.state)

    async def step(self, query: Query) -> training.TrainStepView:
        """An optimiser step."""
        return training.train_step(number(query.get("id", "")), self.source.state)

    async def tasks(self, _: Query) -> list[training.TaskSummary]:
        """The table of tasks."""
        return training.tasks(self.source.state)

    async def task(self, query: Query) -> training.TaskView:
        """A task."""
        return training.task(named(query), self.source.state, self.source.config)

    async def time(self, _: Query) -> time_curves.TimeView:
        """The run over time."""
        config, source = self.source.config, self.source
        slots = config.env.workers * config.env.slots
        return time_curves.over_time(source.state, source.journal(), source.now_ms, slots)

    async def lag(self, _: Query) -> Any:
        """The lag of each consumer group."""
        return await self.source.lags()

    async def log(self, query: Query) -> list[log_view.RecordText]:
        """Records of a topic."""
        topic = log_view.topic_named(query.get("topic", ""))
        found = await self.source.records(topic, query.get("q", "").encode()[:LONGEST_ID], log_view.LIMIT)
        return [log_view.readable(record) for record in found]

    async def dead_letters(self, query: Query) -> Any:
        """Dead letters: how many of each topic, or those of one."""
        name = query.get("topic", "")
        return await self.source.dead_letters(log_view.topic_named(name) if name else None)

    async def find(self, query: Query) -> dict[str, Any]:
        """Which page knows an id."""
        return episodes.find(named(query), self.source.state)


def problem(status: int, text: str) -> web.Response:
    """Return an error as JSON."""
    return web.Response(status=status, body=msgspec.json.encode({"error": text}), content_type="application/json")


def named(query: Query) -> str:
    """Return the id that a query names; raise :class:`NotFound` if it names none."""
    identity = query.get("id", "").strip()
    if not identity or len(identity) > LONGEST_ID:
        raise NotFound("name something: ?id=…")
    return identity


def number(text: str) -> int:
    """Return a number of a query; raise :class:`NotFound` if it is none."""
    if not NUMBER.fullmatch(text):
        raise NotFound(f"not a number: {text[:40]!r}")
    return int(text)


@contextlib.asynccontextmanager
async def serving(server: PageServer, listener: Any, tls: ssl.SSLContext | None) -> Any:
    """Serve on a listening socket while the body lasts."""
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, ssl_context=tls).start()
        yield
    finally:
        await runner.cleanup()
