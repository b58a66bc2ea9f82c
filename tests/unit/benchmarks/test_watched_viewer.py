"""The viewer of `bench watched` is sent what a tab on the wall is sent, and says so if the page goes away."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from benchmarks.watched_run import Viewer
from dart_streams.console.runs.bundle import Bundle
from dart_streams.console.views.page.assets import assets
from dart_streams.console.views.page.bundle_source import BundleSource
from dart_streams.console.views.page.guard import Guard
from dart_streams.console.views.page.server import PageServer
from tests.integration.recorded_run import record


async def test_a_viewer_gets_messages_and_each_screen_once_and_ends_with_an_error_if_the_page_does(tmp_path: Path):
    source = BundleSource(Bundle(await asyncio.to_thread(record, tmp_path / "run.dart", 90)))
    source.read()
    guard = Guard(frozenset(), 1, tls=False)
    server = TestServer(PageServer(source, guard, assets(None)).application())
    await server.start_server()
    viewer = Viewer(f"http://127.0.0.1:{server.port}", guard.token)
    watching = asyncio.create_task(viewer.watch())
    try:
        async with asyncio.timeout(60):
            while viewer.messages < 3:  # noqa: ASYNC110 (another task counts them)
                await asyncio.sleep(0.05)
        assert 0 < len(viewer.seen) <= 8, "the screens of the slots"
        await server.close()
        with pytest.raises(ExceptionGroup):
            async with asyncio.timeout(60):
                await watching
    finally:
        watching.cancel()
        with contextlib.suppress(BaseException):
            await watching
