"""The client of a browser's DevTools and a server that answers, over real HTTP, in the orders that a browser may."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio
from aiohttp import web

from dart_desktops.osworld import browser_devtools, browser_setup
from dart_desktops.osworld.machine import MachineEndpoint
from tests.answering import answering
from tests.waiting import until

BLANK = {"id": "blank", "type": "page", "url": "about:blank", "title": "about:blank"}
URL = "https://a.example/"


def lifecycle(document: str, name: str = "load", frame: str = "main") -> dict[str, Any]:
    """Return a lifecycle event of a document."""
    return {"method": "Page.lifecycleEvent", "params": {"frameId": frame, "loaderId": document, "name": name}}


def navigated(**result: str) -> dict[str, Any]:
    """Return the response to ``Page.navigate``."""
    return {"id": 2, "result": {"frameId": "main", **result}}


class Browser:
    """Answers the requests of DevTools; ``listings`` of its tabs are answered in turn, the last for ever."""

    def __init__(self) -> None:
        self.listings: list[list[dict[str, str]]] = [[BLANK], []]
        self.messages: list[dict[str, Any] | str] = []
        """Messages after ``Page.navigate``."""
        self.hangs = False
        self.ends = False
        """Whether it is gone once a tab is closed."""
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        if request.path.startswith("/devtools/page/"):
            return await self.converse(request)
        self.asked.append(request.path_qs)
        if request.path == "/json/list" and not self.listings:
            return web.Response(status=500)
        if request.path == "/json/list":
            return web.json_response(self.listings.pop(0) if len(self.listings) > 1 else self.listings[0])
        if request.path == "/json/new":
            return web.json_response({**BLANK, "id": f"new-{len(self.asked)}"})
        if self.ends:
            self.listings.clear()
        return web.Response(text="Target is closing")

    async def converse(self, request: web.Request) -> web.WebSocketResponse:
        """Answer the calls for one tab."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            call = message.json()
            if call["method"] != "Page.navigate":
                await socket.send_json({"id": call["id"], "result": {}})
                self.asked += [call["method"]] * (call["method"] == "Page.bringToFront")
                continue
            self.asked.append(call["params"]["url"])
            for answer in self.messages:
                await (socket.send_str(answer) if isinstance(answer, str) else socket.send_json(answer))
            if not self.hangs:
                break
        return socket


@pytest_asyncio.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Browser, MachineEndpoint]]:
    """A browser and the machine on which it answers."""
    monkeypatch.setattr(browser_devtools, "POLL_INTERVAL_S", 0.01)
    browser = Browser()
    async with answering(browser.answer) as url:
        yield browser, MachineEndpoint(url=url, chromium_port=int(url.rsplit(":", 1)[1]))


async def test_a_browser_that_responds_before_it_has_a_tab_is_awaited(served):
    browser, endpoint = served
    browser.listings = [[], [], [BLANK], []]
    await browser_setup.open_tabs(endpoint, [URL])
    assert browser.asked[-4:] == ["/json/close/blank", "/json/list", URL, "Page.bringToFront"]


async def test_a_closed_tab_is_awaited_until_it_is_gone(served):
    browser, endpoint = served
    browser.listings = [[BLANK], [BLANK], [BLANK], []]
    await browser_setup.close_tabs(endpoint, ["about:blank"])
    assert browser.asked.count("/json/list") == 4


async def test_a_browser_may_end_with_its_last_tab(served):
    browser, endpoint = served
    browser.listings = [[BLANK]]
    browser.ends = True
    await browser_setup.close_tabs(endpoint, ["about:blank"])
    assert browser.asked[-2:] == ["/json/close/blank", "/json/list"]


@pytest.mark.parametrize(
    "messages",
    [
        [navigated(loaderId="a"), lifecycle("a")],
        [lifecycle("a"), navigated(loaderId="a")],
        [navigated(loaderId="a"), lifecycle("a", "init"), lifecycle("b")],
        [navigated(loaderId="a", errorText="net::ERR_NAME_NOT_RESOLVED")],
        [navigated(errorText="net::ERR_ABORTED")],
        [{"id": 2, "error": {"message": "Cannot navigate to invalid URL"}}],
    ],
)
async def test_a_navigation_ends_with_its_load_event_or_error(served, messages):
    browser, endpoint = served
    browser.messages, browser.hangs = messages, True
    await browser_setup.open_tabs(endpoint, [URL])
    assert browser.asked[-2:] == [URL, "Page.bringToFront"]


async def test_events_of_other_documents_do_not_end_a_navigation(served):
    browser, endpoint = served
    started = [lifecycle("b"), navigated(loaderId="a"), lifecycle("a", "init"), lifecycle("c", frame="inner")]
    browser.messages, browser.hangs = started, True
    async with browser_devtools.DevToolsClient(endpoint) as client:
        tab = await client.open_tab()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.navigate(tab, URL)


async def test_a_page_that_never_loads_is_left_as_it_is(served, monkeypatch):
    (browser, endpoint), loop = served, asyncio.get_running_loop()
    browser.hangs = True
    opening = asyncio.create_task(browser_setup.open_tabs(endpoint, [URL, URL]))
    await until(AsyncMock(side_effect=lambda: browser.asked.count(URL) == 2))
    assert not opening.done()
    monkeypatch.setattr(loop, "time", lambda time=loop.time: time() + browser_devtools.PAGE_S)
    await opening
    assert browser.asked[-1] == "Page.bringToFront"


async def test_a_tab_whose_connection_closes_is_left_as_it_is(served):
    browser, endpoint = served
    await browser_setup.open_tabs(endpoint, [URL])
    assert browser.asked[-2:] == [URL, "Page.bringToFront"]


@pytest.mark.parametrize(
    "message", ["[" * 100_000, "[]", "7", "loading", '{"id": 2, "result": []}', r'{"id": "\ud83d"}']
)
async def test_a_tab_whose_message_cannot_be_read_is_left_as_it_is(served, message):
    browser, endpoint = served
    browser.messages = [message]
    await browser_setup.open_tabs(endpoint, [URL])
    assert browser.asked[-2:] == [URL, "Page.bringToFront"]
