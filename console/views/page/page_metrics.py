"""Metrics of the page's own server, in the text format of Prometheus."""

from collections import Counter

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PageMetrics:
    """Answered requests by status, refused ones included, open tabs and open runs."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        self.tabs = 0
        self.runs = 0

    def middleware(self) -> Middleware:
        """Return a middleware that counts every request, whoever answers it."""

        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            response = await handler(request)
            self.requests[response.status] += 1
            return response

        return count

    def render(self) -> str:
        """Return all metrics as text."""
        lines = ["# HELP page_requests Answered requests of the page.", "# TYPE page_requests counter"]
        lines += [f'page_requests{{status="{status}"}} {count}' for status, count in sorted(self.requests.items())]
        lines += ["# HELP page_tabs Open tabs of the page.", "# TYPE page_tabs gauge", f"page_tabs {self.tabs}"]
        lines += ["# HELP page_runs Runs that the page has open.", "# TYPE page_runs gauge", f"page_runs {self.runs}"]
        return "\n".join(lines) + "\n"
