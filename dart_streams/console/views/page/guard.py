"""Access control of the page's server: one check for every route but :data:`HEALTH`, including the WebSocket.

Hosts, origins and methods are allow-lists. DNS rebinding can bring another site's scripts to this address, so the Host
header must name this server. The page only reads, unless it was started with a :class:`WriteRight`.
"""

import secrets
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from dart_streams.config.connections import is_loopback
from dart_streams.connection.auth import derive_token, is_same_token
from dart_streams.console.views.page.sign_in import POLICY, UNKNOWN, WRONG, sign_in_page

METHODS = frozenset({"GET", "HEAD"})
WRITTEN = "/api/feedback"
"""The one path that takes a body, with POST."""
CSRF = "X-Dart-Csrf"
"""The header that proves that a script of this page sends a request: no form and no other page can set it."""
HEALTH = "/healthz"
"""The only path without a token and a check of the host: probes name an address, and its answer says nothing."""
KEPT = ("run", "against")
"""Parameters of the page's address that name runs."""
SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site: this page, or the address bar."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
REFUSED_ADDRESS = (
    "this address is not one of the page's own: open the one that dart-streams printed, or allow it with --allow-host"
)


class WriteRight:
    """The right to give feedback: a token, and a cookie and a proof of the page that are derived from it one way."""

    def __init__(self, port: int, token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(24)
        self.session = derive_token(self.token, "feedback session")
        self.csrf = derive_token(self.token, "feedback csrf")
        self.cookie = f"dart_streams_feedback_{port}"

    def knows(self, request: web.Request) -> bool:
        """Return whether a request has the right's cookie, or its token as bearer."""
        return has_secret(request, self.cookie, self.session, self.token)

    def refusal(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a request to write that this page did not send; None for one of this page."""
        if request.headers.get("Origin") is None:
            return web.Response(status=403, text="feedback needs its page's Origin")
        if not is_same_token(request.headers.get(CSRF, ""), self.csrf):
            return web.Response(status=403, text="this tab is of an earlier start of the page: load it again")
        if request.content_type != "application/json":
            return web.Response(status=415, text="feedback is sent as application/json")
        return None


class Guard:
    """The check. ``token`` opens the page and is exchanged for a cookie that is derived from it one way.

    ``behind_proxy``: a proxy may end TLS, so that browsers name an https origin while this server has none. With
    ``right`` some viewers may give feedback; its token opens the page too.
    """

    def __init__(
        self,
        hosts: frozenset[str],
        port: int,
        *,
        tls: bool,
        token: str = "",
        behind_proxy: bool = False,
        right: WriteRight | None = None,
    ) -> None:
        self.right = right
        self.hosts = hosts
        self.tls = tls
        self.schemes = {"https"} if tls else {"http", "https"} if behind_proxy else {"http"}
        self.token = token or secrets.token_urlsafe(24)
        self.session = derive_token(self.token, "session")
        # Browsers share cookies between the ports of a host, so the name has the port.
        self.cookie = f"dart_streams_{port}"

    def middleware(self) -> Middleware:
        """Return the check as aiohttp's middleware."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path == HEALTH and request.method in METHODS:
                return add_headers(web.Response(text="ok\n"))
            if (refused := self.refusal(request)) is not None:
                return refuse(refused)
            if (given := request.query.get("token")) is not None and request.path == "/":
                return self.exchange(given, kept_query(request))
            if not self.knows(request) and request.path == "/":
                return ask_for_token(UNKNOWN, kept_query(request))
            if not self.knows(request):
                text = "open the address that dart-streams printed: it carries the token, which is new at each start"
                return refuse(web.Response(status=401, text=text))
            if request.method not in METHODS and (refused := self.refused_writing(request)) is not None:
                return refuse(refused)
            try:
                return add_headers(await handler(request))
            except web.HTTPException as error:
                return add_headers(web.Response(status=error.status, text=error.text))

        return check

    def refusal(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a request that does not come from this page; None for an allowed one."""
        writes = request.method == "POST" and request.path == WRITTEN and self.right is not None
        if request.method not in METHODS and not writes:
            return web.Response(status=405, text="this page only reads: GET and HEAD", headers={"Allow": "GET, HEAD"})
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or not self.allows(hosts[0]):
            return web.Response(status=421, text=REFUSED_ADDRESS)
        origin = request.headers.get("Origin")
        if origin is not None and origin not in {f"{scheme}://{hosts[0]}" for scheme in self.schemes}:
            return web.Response(status=403, text="requests of another origin are refused")
        if request.headers.get("Upgrade") is not None and origin is None and "Authorization" not in request.headers:
            return web.Response(status=403, text="a WebSocket needs its page's Origin")
        if request.headers.get("Sec-Fetch-Site", "none") not in SITES:
            return web.Response(status=403, text="requests of another site are refused")
        return None

    def refused_writing(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a known viewer's request to write; None for one with the right."""
        if self.right is None or not self.right.knows(request):
            text = "this address only reads: open the one for feedback that dart-streams ui --feedback printed"
            return web.Response(status=403, text=text)
        return self.right.refusal(request)

    def allows(self, host: str) -> bool:
        """Return whether a Host header names this server; its port is ignored."""
        try:
            parts = urlsplit(f"//{host}")
            name = parts.hostname or ""
            _ = parts.port
        except ValueError:
            return False
        return parts.username is None and parts.path == "" and (is_loopback(name) or name in self.hosts)

    def knows(self, request: web.Request) -> bool:
        """Return whether a request has the cookie, or the token as its bearer (for scripts)."""
        return has_secret(request, self.cookie, self.session, self.token) or self.may_write(request)

    def may_write(self, request: web.Request) -> bool:
        """Return whether a request is of a viewer who may give feedback."""
        return self.right is not None and self.right.knows(request)

    def exchange(self, given: str, kept: Mapping[str, str]) -> web.StreamResponse:
        """Answer a token in the address with its cookie and a redirect that keeps the rest of the query.

        For another token, ask for the right one.
        """
        if is_same_token(given, self.token):
            name, session = self.cookie, self.session
        elif self.right is not None and is_same_token(given, self.right.token):
            name, session = self.right.cookie, self.right.session
        else:
            return ask_for_token(WRONG, kept)
        response = web.Response(status=303, headers={"Location": f"/?{urlencode(kept)}" if kept else "/"})
        response.set_cookie(name, session, httponly=True, samesite="Strict", secure=self.tls, path="/")
        return add_headers(response)


def has_secret(request: web.Request, cookie: str, session: str, token: str) -> bool:
    """Return whether a request has a cookie's session, or a token as its bearer."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return is_same_token(request.cookies.get(cookie, ""), session) or is_same_token(bearer, token)


def kept_query(request: web.Request) -> dict[str, str]:
    """Return the parameters of an address that signing in leaves as they are."""
    return {name: request.query[name] for name in KEPT if request.query.get(name)}


def ask_for_token(reason: str, kept: Mapping[str, str]) -> web.StreamResponse:
    """Return the page that asks for the token, with status 401."""
    response = web.Response(status=401, text=sign_in_page(reason, kept), content_type="text/html")
    refused = refuse(response)
    refused.headers["Content-Security-Policy"] = POLICY
    return refused


def refuse(response: web.Response) -> web.StreamResponse:
    """Return a refusal whose connection is closed after it."""
    response.force_close()
    return add_headers(response)


def add_headers(response: web.StreamResponse) -> web.StreamResponse:
    """Add the security headers, unless the response has begun (a WebSocket's)."""
    if not response.prepared:
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
    return response
