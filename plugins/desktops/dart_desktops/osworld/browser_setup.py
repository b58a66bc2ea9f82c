"""Preparation of the machine's browser: its tabs by DevTools, its history by its database."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from dart_desktops.osworld.browser_devtools import DevToolsClient
from dart_desktops.osworld.machine import MachineEndpoint
from dart_desktops.osworld.steps import VisitedPage
from workers.env.environment import EnvironmentFault

HISTORY = "/home/user/.config/google-chrome/Default/History"
CHROME_EPOCH_S = 11_644_473_600
"""Seconds from 1601, the browser's epoch, to 1970."""
TYPED_LINK = 805306368
"""Transition type of a visit by a link in the browser's database."""


async def open_tabs(endpoint: MachineEndpoint, urls: Sequence[str]) -> None:
    """Open each page in a tab, close the browser's initial tab, and return when the pages have loaded.

    As in OSWorld, the last page has the keyboard, and the empty page of a new tab is in its history.
    """
    async with DevToolsClient(endpoint) as client:
        before = await client.tabs_when_up()
        tabs = [await client.open_tab() for _ in urls]
        await client.close_tabs(before[:1])
        await asyncio.gather(*map(client.navigate, tabs, urls))
        for tab in tabs[-1:]:
            await client.focus(tab)


async def close_tabs(endpoint: MachineEndpoint, urls: Sequence[str]) -> None:
    """Close the tabs of these pages."""
    async with DevToolsClient(endpoint) as client:
        tabs = await client.tabs_when_up()
        await client.close_tabs([tab for tab in tabs if any(same_page(tab.url, url) for url in urls)])


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


def same_page(first: str, second: str) -> bool:
    """Return whether two URLs name the same page, ignoring the scheme, ``www.`` and a trailing slash."""

    def bare(url: str) -> tuple[Any, ...]:
        parts = urlsplit(url)
        return (parts.netloc.removeprefix("www."), parts.path.rstrip("/"), parts.query)

    return bare(first) == bare(second)
