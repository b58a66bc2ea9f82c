"""Placeholder pages for the addresses that tasks visit, as a recording that is marked as made."""

import html
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dart_desktops.osworld.pages import MADE_BY, WEB_PAGE, WebPages, page_key, visited_addresses
from dart_desktops.osworld.tasks import OsworldTask
from dart_streams.fsync import replace_file

FILE = "made/{host}.har"
YEAR_S = 31_536_000
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body><h1>{title}</h1>
<p>Placeholder for {url}</p>
<form action="/search"><input name="q" aria-label="Search"><button>Search</button></form>
</body></html>
"""


def make_pages(pages: WebPages, tasks: Iterable[OsworldTask]) -> int:
    """Write placeholders for the tasks' missing addresses, a recording for each host; return their number."""
    wanted = {page_key(url): None for task in tasks for url in (*visited_addresses(task), *expected_addresses(task))}
    missing = [url for url in wanted if pages.state_of(url) == "missing"]
    by_host: dict[str, list[str]] = {}
    for url in missing:
        by_host.setdefault(urlsplit(url).netloc, []).append(url)
    for host, urls in by_host.items():
        path = pages.folder / FILE.format(host=host.replace(":", "_"))
        known = [recording for recording in pages.recordings if recording.path == path]
        path.parent.mkdir(parents=True, exist_ok=True)
        everything = sorted({*urls, *(url for recording in known for url in recording.urls)})
        replace_file(path, msgspec.json.format(msgspec.json.encode(make_recording(everything)), indent=1))
    return len(missing)


def expected_addresses(task: OsworldTask) -> Iterator[str]:
    """Yield the addresses that a task's evaluator expects in the browser."""
    for getter in task.evaluator.getters():
        rules = getter.settings.get("rules")
        if isinstance(rules, dict):
            urls = rules.get("urls", [])
            for url in (rules.get("url"), *(urls if isinstance(urls, list) else [])):
                if isinstance(url, str) and WEB_PAGE.match(url):
                    yield url


def make_recording(urls: Iterable[str]) -> dict[str, Any]:
    """Return a recording with a placeholder for each URL."""
    creator = {"name": MADE_BY, "version": "1"}
    return {"log": {"version": "1.2", "creator": creator, "entries": [make_entry(url) for url in urls]}}


def make_entry(url: str) -> dict[str, Any]:
    """Return the entry of a placeholder. Like most sites it sets a cookie for its whole domain."""
    parts = urlsplit(url)
    domain = (parts.hostname or "").removeprefix("www.")
    words = [word for word in parts.path.replace("-", " ").replace("_", " ").split("/") if word]
    title = " - ".join([*reversed(words), domain])
    headers = [
        {"name": "Content-Type", "value": "text/html; charset=utf-8"},
        {"name": "Set-Cookie", "value": f"visited=1; Domain={domain}; Path=/; Max-Age={YEAR_S}"},
    ]
    text = PAGE.format(title=html.escape(title), url=html.escape(url))
    content = {"size": len(text), "mimeType": "text/html", "text": text}
    response = {"status": 200, "statusText": "OK", "headers": headers, "content": content}
    return {"request": {"method": "GET", "url": url}, "response": response}
