"""An OpenAI-compatible endpoint on loopback that answers as a test says, one request after another."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def chat(text: str = "Action: wait()", **fields: Any) -> dict[str, Any]:
    """Return a good response's fields."""
    return {
        "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7},
    } | fields


def says(fields: Any, status: int = 200, **headers: str) -> Answer:
    """Answer with JSON."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(
            fields, status=status, headers={key.replace("_", "-"): v for key, v in headers.items()}
        )

    return answer


def writes(data: bytes, status: int = 200) -> Answer:
    """Answer with any bytes."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=data, status=status, content_type="application/json")

    return answer


async def truncates(request: web.Request) -> web.StreamResponse:
    """Announce a long response, write its beginning, and close the connection."""
    response = web.StreamResponse(headers={"Content-Length": "100000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


class Hang:
    """Never answers; ``left`` is set when the client has closed the connection."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, _: web.Request) -> web.StreamResponse:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        raise AssertionError


class Misbehaving:
    """The endpoint: ``answers`` in order, the last one for ever; ``bodies`` and ``keys`` are what it was sent."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times_s: list[float] = []
        self.url = ""
        self.context: int | None = None
        """What the list of models gives as the model's ``max_model_len``; None: there is no list."""

    async def list_models(self, _: web.Request) -> web.StreamResponse:
        if self.context is None:
            raise web.HTTPNotFound
        return web.json_response({"data": [{"id": "m", "max_model_len": self.context}]})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.times_s.append(asyncio.get_running_loop().time())
        self.bodies.append(json.loads(await request.read()))
        self.headers.append(dict(request.headers))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)


@contextlib.asynccontextmanager
async def served(*answers: Answer, port: int = 0) -> AsyncIterator[Misbehaving]:
    """Serve an endpoint that answers so."""
    made = Misbehaving(*answers)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", made.handle)
    app.router.add_post("/inference/v1/generate", made.handle)
    app.router.add_get("/v1/models", made.list_models)
    # A client that leaves cancels its handler, as vLLM's server aborts its request.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield made
    finally:
        await runner.cleanup()
