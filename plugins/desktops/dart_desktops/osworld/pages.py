"""Folder of web pages for tasks that visit the live web: recordings as HAR files, as browsers and Playwright save them.

A local server replays them inside the desktop. Placeholders (``placeholder_pages``) are recordings too, marked as made.
"""

import base64
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from dart_desktops.osworld import steps
from dart_desktops.osworld.tasks import OsworldTask
from dart_streams.config.text import json_of
from dart_streams.errors import ConfigError

MADE_BY = "dart-streams placeholder pages"
"""Creator in recordings of placeholders."""
WEB_PAGE = re.compile(r"https?://(?!(localhost|127\.[\d.]+)([:/?#]|$))[\w.-]+([:/?#]|$)")
"""Address on another host."""
LIVE_GETTERS = frozenset(
    {
        "active_tab_html_parse",
        "gotoRecreationPage_and_get_html_content",
        "info_from_website",
        "page_info",
        "pdf_from_url",
    }
)
"""Getters that read the live web by the machine's browser."""
UNSENT = frozenset({"content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive"})
"""Headers of a recorded connection, which do not describe the decoded body."""
PageState = Literal["recorded", "made", "missing"]


class HarCreator(msgspec.Struct, frozen=True):
    """Program that wrote a recording."""

    name: str = ""


class HarHeader(msgspec.Struct, frozen=True):
    """A header."""

    name: str
    value: str


class HarRequest(msgspec.Struct, frozen=True):
    """A request of a recording."""

    url: str


class HarContent(msgspec.Struct, frozen=True):
    """Decoded body of a response, as text or in base64."""

    mime_type: str = msgspec.field(default="", name="mimeType")
    text: str = ""
    encoding: str = ""


class HarResponse(msgspec.Struct, frozen=True):
    """A response; status 0 if none came."""

    status: int
    headers: list[HarHeader] = []
    content: HarContent = HarContent()


class HarEntry(msgspec.Struct, frozen=True):
    """A request with its response."""

    request: HarRequest
    response: HarResponse


class HarLog(msgspec.Struct, frozen=True):
    """Content of a recording."""

    creator: HarCreator = HarCreator()
    entries: list[HarEntry] = []


class HarFile(msgspec.Struct, frozen=True):
    """A recording (HTTP Archive 1.2), of which other fields are ignored."""

    log: HarLog


class PageRecording(msgspec.Struct, frozen=True):
    """Index of a recording: its file, its pages' URLs and hosts; ``made`` if it holds placeholders."""

    path: Path
    urls: frozenset[str]
    hosts: frozenset[str]
    made: bool


class PageEntry(msgspec.Struct, frozen=True):
    """An address that tasks visit, and its state."""

    url: str
    state: PageState
    pages: tuple[str, ...]


class WebPages:
    """A folder of recordings, which is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recordings = tuple(sorted(read_recordings(folder), key=lambda recording: recording.made))
        """Real recordings first, so that they come before placeholders of the same address."""

    def state_of(self, url: str) -> PageState:
        """Return whether an address was recorded or made, or is missing."""
        wanted = page_key(url)
        for recording in self.recordings:
            if wanted in recording.urls or other_scheme(wanted) in recording.urls:
                return "made" if recording.made else "recorded"
        return "missing"

    def is_made_for(self, task: OsworldTask) -> bool:
        """Return whether a page that a task visits is a placeholder."""
        return any(self.state_of(url) == "made" for url in visited_addresses(task))

    def survey(self, tasks: Iterable[OsworldTask]) -> list[PageEntry]:
        """Return the addresses that tasks visit."""
        pages: dict[str, list[str]] = {}
        for task in tasks:
            for url in visited_addresses(task):
                pages.setdefault(page_key(url), []).append(task.page)
        return [PageEntry(url, self.state_of(url), tuple(pages[url])) for url in sorted(pages)]

    def responses_for(self, task: OsworldTask) -> list[dict[str, Any]]:
        """Return the responses of all recordings of the task's hosts; raise ConfigError for a file that has changed."""
        hosts = {site_of(host_of(url)) for url in visited_addresses(task)}
        chosen = [recording for recording in self.recordings if hosts & set(map(site_of, recording.hosts))]
        return [response for recording in chosen for response in read_responses(recording.path)]


def visits_web(task: OsworldTask) -> bool:
    """Return whether a task or its evaluator reads pages of the live web."""
    return bool(visited_addresses(task)) or any(getter.name in LIVE_GETTERS for getter in task.evaluator.getters())


def visited_addresses(task: OsworldTask) -> list[str]:
    """Return the addresses that the steps and the evaluator of a task visit, each once."""
    found = [url for step in task.steps() if isinstance(step, steps.ChromeOpenTabs) for url in step.urls_to_open]
    for getter in task.evaluator.getters():
        if getter.name in LIVE_GETTERS:
            found += [str(getter.settings[key]) for key in ("url", "path") if key in getter.settings]
    return list(dict.fromkeys(url for url in found if WEB_PAGE.match(url)))


def page_key(url: str) -> str:
    """Return a URL in the form of a browser's request: with a path, and without a fragment."""
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path or '/'}{query}"


def other_scheme(url: str) -> str:
    """Return a URL with the other one of http and https."""
    return "https" + url.removeprefix("http") if url.startswith("http:") else "http" + url.removeprefix("https")


def host_of(url: str) -> str:
    """Return the host of a URL."""
    return urlsplit(url).hostname or ""


def site_of(host: str) -> str:
    """Return a host without ``www.``, as a site often has pages at both."""
    return host.removeprefix("www.")


def read_recordings(folder: Path) -> Iterator[PageRecording]:
    """Yield the indexes of a folder's recordings; raise ConfigError that names one that cannot be read."""
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder} of web pages: `dart-streams osworld pages` says how to fill it")
    for path in sorted(folder.rglob("*.har")):
        log = read_log(path)
        urls = frozenset(page_key(entry.request.url) for entry in log.entries if is_page(entry))
        yield PageRecording(path, urls, frozenset(map(host_of, urls)), log.creator.name == MADE_BY)


def read_log(path: Path) -> HarLog:
    """Return the content of a recording; raise ConfigError if it is none."""
    try:
        return json_of(path.read_bytes(), str(path), HarFile).log
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None


def read_responses(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the responses of a recording in the form of the page server."""
    for entry in read_log(path).entries:
        response, content = entry.response, entry.response.content
        if not is_page(entry):
            continue
        body = content.text if content.encoding == "base64" else base64.b64encode(content.text.encode()).decode()
        headers = [[header.name, header.value] for header in response.headers if is_sent(header.name)]
        yield {"url": page_key(entry.request.url), "status": response.status, "headers": headers, "body": body}


def is_page(entry: HarEntry) -> bool:
    """Return whether an entry has a response of a web address."""
    return bool(entry.response.status and WEB_PAGE.match(entry.request.url))


def is_sent(name: str) -> bool:
    """Return whether a recorded header is sent with the decoded body; pseudo headers of HTTP/2 are not."""
    return name.lower() not in UNSENT and not name.startswith(":")
