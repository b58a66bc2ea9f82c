"""Preparation of the machine's browser: its tabs by DevTools, its history by its database."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from workers.env.backends.connection import Connection
from workers.env.backends.osworld.machine import MachineEndpoint
from workers.env.backends.osworld.steps import VisitedPage
from workers.env.environment import EnvironmentFault

UP_S = 75.0
"""Time limit for the browser to respond, as in OSWorld."""
POLL_INTERVAL_S = 0.5
REQUEST_S = 60.0
"""Time limit of a request, also while the browser starts on a busy machine."""
PAGE_S = 20.0
"""Time limit for pages to have titles; slower pages are left as they are, as in OSWorld."""
HISTORY = "/home/user/.config/google-chrome/Default/History"
CHROME_EPOCH_S = 11_644_473_600
"""Seconds from 1601, the browser's epoch, to 1970."""
TYPED_LINK = 805306368
"""Transition type of a visit by a link in the browser's database."""


class Tab(msgspec.Struct, frozen=True):
    """A tab, as DevTools lists it."""

    id: str
    type: str
    url: str
    title: str = ""


async def open_tabs(endpoint: MachineEndpoint, urls: Sequence[str]) -> None:
    """Open each page in a tab, and close the browser's initial tab."""
    async with open_devtools(endpoint) as client:
        before = await tabs_when_up(client)
        for url in urls:
            await client.send("PUT", f"/json/new?{quote(url, safe=':/?&=%#+,;@~')}")
        for tab in before[:1]:
            await client.send("GET", f"/json/close/{tab.id}")
        await wait_for_titles(client, len(urls))


async def close_tabs(endpoint: MachineEndpoint, urls: Sequence[str]) -> None:
    """Close the tabs of these pages."""
    async with open_devtools(endpoint) as client:
        for tab in await tabs_when_up(client):
            if any(same_page(tab.url, url) for url in urls):
                await client.send("GET", f"/json/close/{tab.id}")


def with_visits(database: bytes, visits: Sequence[VisitedPage], now_s: float) -> bytes:
    """Add visits, relative to ``now_s``, to a browser's history; raise EnvironmentFault for an invalid database."""
    with contextlib.closing(sqlite3.connect(":memory:")) as rows:
        try:
            rows.deserialize(database)
            insert_visits(rows, visits, now_s)
        except sqlite3.Error as error:
            raise EnvironmentFault(f"the mirror has no history of a browser: {error}") from None
        return rows.serialize()


def insert_visits(rows: sqlite3.Connection, visits: Sequence[VisitedPage], now_s: float) -> None:
    """Insert visits into an open database."""
    with rows:
        for visit in visits:
            at = int((now_s - visit.visit_time_from_now_in_seconds + CHROME_EPOCH_S) * 1e6)
            added = rows.execute(
                "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) VALUES (?,?,1,0,?,0)",
                (visit.url, visit.title, at),
            )
            rows.execute(
                "INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration)"
                " VALUES (?, ?, 0, ?, 0, 0)",
                (added.lastrowid, at, TYPED_LINK),
            )


def open_devtools(endpoint: MachineEndpoint) -> Connection:
    """Return a client of the machine's DevTools."""
    host = urlsplit(endpoint.url).hostname
    return Connection(f"http://{host}:{endpoint.chromium_port}", REQUEST_S, {"Host": "localhost"})


async def tabs_when_up(client: Connection) -> list[Tab]:
    """Return the tabs once the browser responds; raise EnvironmentFault if it does not."""
    deadline = time.monotonic() + UP_S
    while True:
        try:
            return await list_tabs(client)
        except EnvironmentFault as fault:
            if time.monotonic() > deadline:
                raise EnvironmentFault(f"the browser is not up after {UP_S:g} s: {fault}") from None
        await asyncio.sleep(POLL_INTERVAL_S)


async def wait_for_titles(client: Connection, count: int) -> None:
    """Wait until this many tabs have titles."""
    deadline = time.monotonic() + PAGE_S
    while time.monotonic() < deadline:
        if sum(bool(tab.title) for tab in await list_tabs(client)) >= count:
            return
        await asyncio.sleep(POLL_INTERVAL_S)


async def list_tabs(client: Connection) -> list[Tab]:
    """Return the tabs, newest first."""
    tabs: list[Tab] = client.decode("/json/list", await client.send("GET", "/json/list"), list[Tab])
    return [tab for tab in tabs if tab.type == "page"]


def same_page(first: str, second: str) -> bool:
    """Return whether two URLs name the same page, ignoring the scheme, ``www.`` and a trailing slash."""

    def bare(url: str) -> tuple[Any, ...]:
        parts = urlsplit(url)
        return (parts.netloc.removeprefix("www."), parts.path.rstrip("/"), parts.query)

    return bare(first) == bare(second)
