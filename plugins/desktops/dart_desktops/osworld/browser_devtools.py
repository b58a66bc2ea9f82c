"""DevTools of the machine's browser over its port: its tabs, and the pages that they load."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec

from dart_desktops.osworld.machine import MachineEndpoint
from workers.env.backends.connection import Connection
from workers.env.environment import EnvironmentFault

UP_S = 75.0
"""Time limit for the browser to respond, as in OSWorld."""
FIRST_TAB_S = 20.0
"""Time limit for the first tab of a browser that responds."""
POLL_INTERVAL_S = 0.5
REQUEST_S = 60.0
"""Time limit of a request, also while the browser starts on a busy machine."""
PAGE_S = 60.0
"""Time limit for a page to load; slower pages are left as they are, as in OSWorld."""
CLOSE_S = 20.0
"""Time limit for closed tabs to leave the list."""
HOST = {"Host": "localhost"}
"""DevTools rejects the name of another host."""

Socket = aiohttp.ClientWebSocketResponse


class Tab(msgspec.Struct, frozen=True):
    """A tab, as DevTools lists it."""

    id: str
    type: str
    url: str
    title: str = ""


class DevToolsClient:
    """Client of the machine's DevTools; raises EnvironmentFault if a request fails."""

    def __init__(self, endpoint: MachineEndpoint) -> None:
        self.url = f"http://{urlsplit(endpoint.url).hostname}:{endpoint.chromium_port}"
        self._connection = Connection(self.url, REQUEST_S, HOST)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def list_tabs(self) -> list[Tab]:
        """Return the tabs, newest first."""
        path = "/json/list"
        tabs: list[Tab] = self._connection.decode(path, await self._connection.send("GET", path), list[Tab])
        return [tab for tab in tabs if tab.type == "page"]

    async def tabs_when_up(self) -> list[Tab]:
        """Return the tabs once the browser responds and has one; raise EnvironmentFault if it does not respond.

        A browser responds before its first window opens.
        """
        if tabs := await self._list_when_up():
            return tabs
        return await self._list_until(bool, FIRST_TAB_S)

    async def open_tab(self) -> Tab:
        """Open an empty tab in the foreground."""
        path = "/json/new?about:blank"
        tab: Tab = self._connection.decode(path, await self._connection.send("PUT", path), Tab)
        return tab

    async def close_tabs(self, tabs: Iterable[Tab]) -> None:
        """Close tabs, and return when they are gone: the browser answers before it closes one."""
        closed = set()
        for tab in tabs:
            await self._connection.send("GET", f"/json/close/{tab.id}")
            closed.add(tab.id)
        with contextlib.suppress(EnvironmentFault):  # A browser without a tab ends.
            await self._list_until(lambda tabs: closed.isdisjoint(tab.id for tab in tabs), CLOSE_S)

    async def navigate(self, tab: Tab, url: str) -> None:
        """Load a page in a tab, and return after its load event or after ``PAGE_S``; never raises."""
        await self._converse(tab, PAGE_S, partial(load, url=url))

    async def focus(self, tab: Tab) -> None:
        """Bring a tab to the front, and give its page the keyboard; never raises."""
        await self._converse(tab, REQUEST_S, bring_to_front)

    async def _converse(self, tab: Tab, limit_s: float, exchange: Callable[[Socket], Awaitable[None]]) -> None:
        """Exchange messages about a tab; one that fails or is late is left as it is."""
        unread = (ValueError, TypeError, AttributeError, RecursionError)
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError, *unread):
            async with (
                asyncio.timeout(limit_s),
                aiohttp.ClientSession(headers=HOST) as session,
                session.ws_connect(f"{self.url}/devtools/page/{tab.id}", max_msg_size=0) as socket,
            ):
                await exchange(socket)

    async def _list_when_up(self) -> list[Tab]:
        deadline = time.monotonic() + UP_S
        while True:
            try:
                return await self.list_tabs()
            except EnvironmentFault as fault:
                if time.monotonic() > deadline:
                    raise EnvironmentFault(f"the browser is not up after {UP_S:g} s: {fault}") from None
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _list_until(self, condition: Callable[[list[Tab]], bool], limit_s: float) -> list[Tab]:
        deadline = time.monotonic() + limit_s
        while True:
            tabs = await self.list_tabs()
            if condition(tabs) or time.monotonic() > deadline:
                return tabs
            await asyncio.sleep(POLL_INTERVAL_S)


async def bring_to_front(socket: Socket) -> None:
    """Bring a tab to the front; return after the response."""
    await socket.send_json({"id": 0, "method": "Page.bringToFront"})
    await socket.receive()


async def load(socket: Socket, url: str) -> None:
    """Navigate to ``url``, and return after the load event of its document, or if there is none.

    Dialogs, which block a page, are dismissed as in OSWorld.
    """
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("Page.enable", {}),
        ("Page.setLifecycleEventsEnabled", {"enabled": True}),
        ("Page.navigate", {"url": url}),
    )
    for number, (method, params) in enumerate(calls):
        await socket.send_json({"id": number, "method": method, "params": params})
    frame = document = None
    events: list[dict[str, Any]] = []
    async for received in socket:
        message = received.json()
        if message.get("id") == len(calls) - 1:
            result = message.get("result", {})
            frame, document = result.get("frameId"), result.get("loaderId")
            if document is None or result.get("errorText"):
                return
        elif message.get("method") == "Page.lifecycleEvent":
            events.append(message["params"])
        elif message.get("method") == "Page.javascriptDialogOpening":
            dismissal = {"method": "Page.handleJavaScriptDialog", "params": {"accept": False}}
            await socket.send_json({"id": len(calls), **dismissal})
        if has_loaded([event for event in events if event["frameId"] == frame], document):
            return


def has_loaded(events: Sequence[Mapping[str, Any]], document: str | None) -> bool:
    """Return whether a frame's lifecycle events have the load of a document, or of one to which it has redirected."""
    own = itertools.dropwhile(lambda event: event["loaderId"] != document, events)
    return any(event["name"] == "load" for event in own)
