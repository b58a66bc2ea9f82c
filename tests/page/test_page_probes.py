"""The page's addresses for operators: what needs the token, and what answers without."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, WSMsgType
from aiohttp.test_utils import TestServer

from console.runs.bundle import Bundle
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from console.views.page.guard import Guard
from console.views.page.server import PageServer
from tests.waiting import until

BUNDLE = Path(__file__).parents[1] / "unit/golden/bundle.v1.dart"


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[ClientSession, dict[str, str], BundleSource]]:
    """Yield a client without cookies, the header with the token, and the page's source."""
    guard, source = Guard(frozenset(), 1, tls=False), BundleSource(Bundle(BUNDLE))
    application = PageServer(source, guard, load_assets(None)).application()
    async with TestServer(application) as server, ClientSession(f"http://127.0.0.1:{server.port}") as client:
        yield client, {"Authorization": f"Bearer {guard.token}"}, source


@pytest.mark.parametrize("headers", [{}, {"Host": "10.1.2.3:8765"}, {"Origin": "https://other.example"}])
async def test_health_answers_probes_without_a_token(headers: dict[str, str]):
    async with served() as (client, _, _):
        async with client.get("/healthz", headers=headers) as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        async with client.head("/healthz", headers=headers) as answer:
            assert answer.status == 200


async def test_health_opens_no_other_path_or_method():
    async with served() as (client, _, _):
        for path in ("/healthz/", "/healthz/../api/header", "/healthz%2F", "/Healthz", "/api/healthz", "/metrics"):
            async with client.get(path) as answer:
                assert answer.status == 401, path
        async with client.post("/healthz") as answer:
            assert answer.status == 405


@pytest.mark.parametrize("given", ["", "Bearer wrong"])
async def test_metrics_need_the_token(given: str):
    async with served() as (client, _, _), client.get("/metrics", headers={"Authorization": given}) as answer:
        assert answer.status == 401
        assert "page_requests" not in await answer.text()


async def test_metrics_count_requests_by_status_and_tabs():
    async with served() as (client, token, _):
        for _ in range(2):
            await client.get("/api/wall")
        assert (await client.get("/api/nosuch", headers=token)).status == 404

        async def metrics() -> list[str]:
            async with client.get("/metrics", headers=token) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                return (await answer.text()).splitlines()

        first = await metrics()
        assert {'page_requests{status="401"} 2', 'page_requests{status="404"} 1', "page_tabs 0"} <= set(first)
        async with client.ws_connect("/api/live?watch=wall", headers=token) as socket:
            assert (await socket.receive()).type is WSMsgType.TEXT
            assert "page_tabs 1" in await metrics()

        async def is_closed() -> bool:
            return "page_tabs 0" in await metrics()

        await until(is_closed)
