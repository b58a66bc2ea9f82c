"""A stand-in for AndroidWorld's server, made from its documented endpoints: no emulator, and no code of AndroidWorld.

Its one task type ``TapTheBox`` draws a box on a small screen, at a place of the task's index; a tap on it solves it.
"""

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.test_utils import TestServer

WIDTH, HEIGHT, BOX = 60, 80, 20
KINDS = {
    *("answer", "click", "double_tap", "input_text", "keyboard_enter", "long_press", "navigate_back", "navigate_home"),
    *("open_app", "scroll", "status", "swipe", "unknown", "wait"),
}
DIRECTIONS = {None, "left", "right", "up", "down"}


def box_of(index: int) -> tuple[int, int]:
    """Return the box's corner."""
    return index * 7 % (WIDTH - BOX), index * 11 % (HEIGHT - BOX)


class Phone:
    """The state that all requests share, as an emulator's."""

    def __init__(self) -> None:
        self.task: tuple[str, int] | None = None
        self.touched: list[dict] = []
        self.torn_down = 0
        self.failing = ""

    @property
    def solved(self) -> bool:
        left, top = box_of(self.task[1]) if self.task else (0, 0)
        return any(
            one["action_type"] == "click" and 0 <= one["x"] - left < BOX and 0 <= one["y"] - top < BOX
            for one in self.touched
        )

    def pixels(self) -> list:
        left, top = box_of(self.task[1]) if self.task else (WIDTH, HEIGHT)
        color = [0, 160, 0] if self.solved else [200, 0, 0]
        rows = [[[255, 255, 255]] * WIDTH for _ in range(HEIGHT)]
        for row in rows[top : top + BOX]:
            row[left : left + BOX] = [color] * BOX
        rows[0][0] = [len(self.touched) % 256, 0, 0]
        return rows


def named(request: web.Request) -> tuple[str, int]:
    if request.query["task_type"] != "TapTheBox":
        raise web.HTTPInternalServerError(text=f"KeyError: {request.query['task_type']!r}")
    return request.query["task_type"], int(request.query["task_idx"])


class StandIn:
    """The endpoints of one phone."""

    def __init__(self, phone: Phone) -> None:
        self.phone = phone

    def application(self) -> web.Application:
        made = web.Application()
        made.add_routes(
            [
                web.get("/health", self.health),
                web.post("/reset", self.reset),
                web.get("/screenshot", self.screenshot),
                web.post("/execute_action", self.execute),
                web.post("/task/initialize", self.initialize),
                web.post("/task/tear_down", self.tear_down),
                web.get("/task/score", self.score),
                web.get("/task/goal", self.goal),
            ]
        )
        return made

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "success"})

    async def reset(self, request: web.Request) -> web.Response:
        assert request.query["go_home"] in {"true", "false"}
        self.phone.touched.clear()
        return web.json_response({"status": "success", "message": "reset"})

    async def screenshot(self, request: web.Request) -> web.Response:
        assert request.query["wait_to_stabilize"] in {"true", "false"}
        if self.phone.failing:
            raise web.HTTPInternalServerError(text=self.phone.failing)
        return web.json_response({"pixels": self.phone.pixels()})

    async def execute(self, request: web.Request) -> web.Response:
        action = await request.json()
        if action["action_type"] not in KINDS or action.get("direction") not in DIRECTIONS:
            raise web.HTTPInternalServerError(text=f"ValueError: {action}")
        self.phone.touched.append(action)
        return web.json_response({"status": "success", "message": "executed"})

    async def initialize(self, request: web.Request) -> web.Response:
        self.phone.task = named(request)
        return web.json_response({"status": "success", "message": "initialized"})

    async def tear_down(self, request: web.Request) -> web.Response:
        named(request)
        self.phone.task, self.phone.torn_down = None, self.phone.torn_down + 1
        self.phone.touched.clear()
        return web.json_response({"status": "success", "message": "torn down"})

    async def score(self, request: web.Request) -> web.Response:
        named(request)
        return web.json_response({"score": float(self.phone.solved)})

    async def goal(self, request: web.Request) -> web.Response:
        return web.json_response({"goal": f"Tap the box number {named(request)[1]}."})


@contextlib.asynccontextmanager
async def served(*phones: Phone) -> AsyncIterator[list[str]]:
    """Serve a stand-in for each phone; yield their addresses."""
    async with contextlib.AsyncExitStack() as stack:
        made = [TestServer(StandIn(phone).application()) for phone in phones]
        yield [str((await stack.enter_async_context(server)).make_url("")).rstrip("/") for server in made]
