"""A stand-in for AndroidWorld's server, made from its documented endpoints: no emulator, and no code of AndroidWorld.

The task type ``TapTheBox`` draws a box on a small screen, at a place of the task's index; a tap on it solves it.
``SayTheNumber`` asks for the index, as tasks of information retrieval do; only an ``answer`` solves it.
``python -m tests.androidworld_stand_in PORT...`` serves a phone at each port until it is stopped.
"""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Iterable

from aiohttp import web

from tests.answering import answering

WIDTH, HEIGHT, BOX = 56, 84, 20
"""Pixels. A policy gets this screen in its own size."""
KINDS = {
    *("answer", "click", "double_tap", "input_text", "keyboard_enter", "long_press", "navigate_back", "navigate_home"),
    *("open_app", "scroll", "status", "swipe", "unknown", "wait"),
}
DIRECTIONS = {None, "left", "right", "up", "down"}
FIELDS = {"action_type", "index", "x", "y", "text", "direction", "goal_status", "app_name", "keycode", "clear_text"}
"""Fields of AndroidWorld's JSONAction, whose constructor refuses others."""


def box_of(index: int) -> tuple[int, int]:
    """Return the box's corner."""
    return index * 7 % (WIDTH - BOX), index * 11 % (HEIGHT - BOX)


def goal_of(kind: str, index: int) -> str:
    """Return the instruction, with the box's middle for a scripted policy."""
    x, y = (corner + BOX // 2 for corner in box_of(index))
    return f"Tap the box number {index} at ({x}, {y})." if kind == "TapTheBox" else f"Say the number {index}."


class Phone:
    """The state that all requests share, as an emulator's, and its endpoints."""

    def __init__(self) -> None:
        self.task: tuple[str, int] | None = None
        self.touched: list[dict] = []
        self.ends: list[dict] = []
        """Answers and status, of all episodes."""
        self.torn_down = 0
        self.asked: list[str] = []
        self.failing = ""

    @property
    def solved(self) -> bool:
        if self.task and self.task[0] == "SayTheNumber":
            return any(one["action_type"] == "answer" and one["text"] == str(self.task[1]) for one in self.touched)
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

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path_qs}")
        match request.method, request.path:
            case "GET", "/health":
                return web.json_response({"status": "success"})
            case "POST", "/reset":
                assert request.query["go_home"] in {"true", "false"}
                self.touched.clear()
                return web.json_response({"status": "success", "message": "reset"})
            case "GET", "/screenshot":
                assert request.query["wait_to_stabilize"] in {"true", "false"}
                if self.failing:
                    raise web.HTTPInternalServerError(text=self.failing)
                return web.json_response({"pixels": self.pixels()})
            case "POST", "/execute_action":
                action = await request.json()
                known = action.keys() <= FIELDS and action["action_type"] in KINDS
                if not known or action.get("direction") not in DIRECTIONS:
                    raise web.HTTPInternalServerError(text=f"ValueError: {action}")
                self.touched.append(action)
                if action["action_type"] in {"answer", "status"}:
                    self.ends.append(action)
                return web.json_response({"status": "success", "message": "executed"})
        return web.json_response(self.answer_of_task(request))

    def answer_of_task(self, request: web.Request) -> dict:
        kind, index = request.query["task_type"], int(request.query["task_idx"])
        if kind not in {"TapTheBox", "SayTheNumber"}:
            raise web.HTTPInternalServerError(text=f"KeyError: {kind!r}")
        match request.method, request.path:
            case "POST", "/task/initialize":
                self.task = kind, index
                return {"status": "success", "message": "initialized"}
            case "POST", "/task/tear_down":
                self.task, self.torn_down = None, self.torn_down + 1
                self.touched.clear()
                return {"status": "success", "message": "torn down"}
            case "GET", "/task/score":
                return {"score": float(self.solved)}
            case "GET", "/task/goal":
                return {"goal": goal_of(kind, index)}
        raise web.HTTPNotFound


@contextlib.asynccontextmanager
async def served(*phones: Phone, ports: Iterable[int | None] = itertools.repeat(None)) -> AsyncIterator[list[str]]:
    """Serve each phone; yield their addresses."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [answering(phone.answer, port=port) for phone, port in zip(phones, ports, strict=False)]
        yield [await stack.enter_async_context(server) for server in servers]


async def main() -> None:
    async with served(*(Phone() for _ in sys.argv[1:]), ports=map(int, sys.argv[1:])):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
