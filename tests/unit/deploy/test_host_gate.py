"""The gate before Jaeger and kafka-ui: who names this machine gets their answers, and a rebound name gets none."""

import runpy
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

GATE = runpy.run_path(str(Path(__file__).parents[3] / "deploy/docker/host_gate.py"))["gate"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:16686"}, 200),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Host": "evil.example:16686"}, 421),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 421),
    ],
)
async def test_only_who_names_this_machine_gets_an_answer(headers: dict[str, str], status: int):
    async def echo(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.raw_path} {await request.text()}")

    tool = web.Application()
    tool.router.add_post("/{path:.*}", echo)
    async with TestServer(tool) as server, TestClient(TestServer(GATE(f"http://127.0.0.1:{server.port}"))) as client:
        answer = await client.post("/api/traces?service=a%20b", data=b"body", headers=headers)
        assert answer.status == status
        assert (await answer.text() == "/api/traces?service=a%20b body") is (status == 200)
