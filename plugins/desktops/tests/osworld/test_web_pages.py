"""Chromium on a real desktop shows recorded pages of the web, and reaches nothing else."""

from pathlib import Path

import pytest

from dart_desktops.osworld import browser_setup
from dart_desktops.osworld.browser_devtools import DevToolsClient
from dart_desktops.osworld.page_replay import serve_pages
from dart_desktops.osworld.pages import WebPages
from dart_desktops.osworld.placeholder_pages import make_pages
from dart_desktops.osworld.settling import wait_idle
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.served_desktops import IDLE_S, served
from plugins.desktops.tests.unit.osworld.parsed_tasks import parse_task, step
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, osworld_needs.EVALUATORS]
SECURE, PLAIN = "https://www.shop.example/sale/red-shoes", "http://news.example/"
UNKNOWN = "https://elsewhere.example/"
BROWSER = ["google-chrome", "--remote-debugging-port=9222", "about:blank"]
TAB_S = 120.0


async def test_recorded_hosts_are_shown_and_no_others(tmp_path: Path):
    task = parse_task({"func": "infeasible"}, step("chrome_open_tabs", urls_to_open=[SECURE, PLAIN]))
    (tmp_path / "pages").mkdir()
    make_pages(WebPages(tmp_path / "pages"), [task])
    async with served(tmp_path, slots=1, lease_s=600.0) as desktops, desktops.machine() as machine:
        await serve_pages(machine, WebPages(tmp_path / "pages"), task)
        await machine.launch(BROWSER)
        await wait_idle(machine, IDLE_S)
        await browser_setup.open_tabs(machine.endpoint, [SECURE, PLAIN, UNKNOWN])

        async def titles() -> dict[str, str]:
            async with DevToolsClient(machine.endpoint) as client:
                return {tab.url: tab.title for tab in await client.list_tabs()}

        async def shown() -> bool:
            found = await titles()
            # The last title is that of the browser's own error page.
            wanted = {SECURE: "red shoes - sale - shop.example", PLAIN: "news.example", UNKNOWN: "elsewhere.example"}
            return wanted.items() <= found.items()

        await until(shown, TAB_S)
        fetched = await machine.execute(["python3", "-c", f"import urllib.request as u; u.urlopen({SECURE!r})"])
        assert "gaierror" in fetched["error"]
