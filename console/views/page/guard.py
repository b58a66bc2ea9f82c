"""Access control of the page's server: one check for every route but :data:`HEALTH`, including the WebSocket.

Hosts, origins and methods are allow-lists. DNS rebinding can bring another site's scripts to this address, so the Host
header must name this server. The page only reads, unless it was started with a :class:`WriteRight`.
"""

import re
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from console.views.page.sign_in import AGAIN, POLICY, UNKNOWN, WRONG, opening_page, sign_in_page
from dart_streams.config.connections import is_loopback
from dart_streams.connection.auth import derive_token, is_same_token
from dart_streams.http_bounds import note_known

METHODS = frozenset({"GET", "HEAD"})
WRITTEN = "/api/feedback"
"""The one path that takes a body, with POST."""
CSRF = "X-Dart-Csrf"
"""The header with the proof that a script of this page sends a request: no form and no other page can set it."""
FILES = re.compile(r"/((vendor/)?[\w.-]+\.(html|js|css|svg))?|/screenshot/[^/]*")
"""What the cookie alone opens: the page's own files, and screenshots, whose names only answers to a proof have."""
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
    "Cache-Control": "no-store",
}
HTTPS_ONLY = "max-age=31536000"
"""Behind a proxy: a browser that has opened the page once asks for it with TLS only."""
REFUSED_ADDRESS = (
    "this address is not one of the page's own: open the one that dart-streams printed, or allow it with --allow-host"
)


class Access:
    """What a token is exchanged for: a cookie, and a proof that a page's script sends beside it.

    Browsers send cookies to every port of a host. What a page has stored is of its own port alone, so a listener on
    another port never gets the proof.
    """

    def __init__(self, cookie: str, token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(24)
        self.cookie = cookie
        self.start = secrets.token_urlsafe(24)
        self.csrf = derive_token(self.token, "csrf")

    def session(self, request: web.Request) -> str:
        """Return the cookie's value. On loopback it is of this start: later, somebody else may have taken the port."""
        place = host_of(request)
        return derive_token(self.token, f"session at {self.start if is_loopback(place) else place}")

    def knows(self, request: web.Request) -> bool:
        """Return whether a request has the token as its bearer (for scripts), or the cookie with its proof."""
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if is_same_token(bearer, self.token):
            return True
        if not is_same_token(request.cookies.get(self.cookie, ""), self.session(request)):
            return False
        # WebSockets and downloads have no headers of their own.
        proof = request.headers.get(CSRF, request.query.get("csrf", ""))
        return FILES.fullmatch(request.path) is not None or is_same_token(proof, self.csrf)


class WriteRight(Access):
    """The right to give feedback."""

    def __init__(self, port: int, token: str = "") -> None:
        super().__init__(f"dart_streams_feedback_{port}", token)


class Guard:
    """The check. A ``token`` opens the page to read.

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
        self.reading = Access(f"dart_streams_{port}", token)
        self.token = self.reading.token
        self.right = right
        self.accesses = [self.reading, *([right] if right is not None else [])]
        self.hosts = hosts
        self.tls = tls
        self.behind_proxy = behind_proxy
        self.schemes = {"https"} if tls else {"http", "https"} if behind_proxy else {"http"}

    def middleware(self) -> Middleware:
        """Return the check as aiohttp's middleware."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path == HEALTH and request.method in METHODS:
                return add_headers(web.Response(text="ok\n"))
            if (refused := self.refusal(request)) is not None:
                return refuse(refused)
            response = await self.answer(request, handler)
            if self.behind_proxy and not is_loopback(host_of(request)) and not response.prepared:
                response.headers["Strict-Transport-Security"] = HTTPS_ONLY
            return response

        return check

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer an allowed request: sign in, ask for the token, or pass a viewer's request on."""
        if (given := request.query.get("token")) is not None and request.path == "/":
            return self.exchange(request, given)
        if not (known := any(access.knows(request) for access in self.accesses)) and request.path == "/":
            return ask_for_token(UNKNOWN, kept_query(request))
        if not known:
            text = "open the address that dart-streams printed: it carries the token, which is new at each start"
            return refuse(web.Response(status=401, text=text))
        note_known(request)
        if request.method not in METHODS and (refused := self.refused_writing(request)) is not None:
            return refuse(refused)
        try:
            return add_headers(await handler(request))
        except web.HTTPException as error:
            return add_headers(web.Response(status=error.status, text=error.text))

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
        if request.headers.get("Origin") is None:
            return web.Response(status=403, text="feedback needs its page's Origin")
        if request.content_type != "application/json":
            return web.Response(status=415, text="feedback is sent as application/json")
        return None

    def allows(self, host: str) -> bool:
        """Return whether a Host header names this server; its port is ignored."""
        try:
            parts = urlsplit(f"//{host}")
            name = parts.hostname or ""
            _ = parts.port
        except ValueError:
            return False
        return parts.username is None and parts.path == "" and (is_loopback(name) or name in self.hosts)

    def exchange(self, request: web.Request, given: str) -> web.StreamResponse:
        """Answer a token in the address with its cookie, and a page that keeps its proof and opens the run's page.

        For another token, ask for the right one.
        """
        for access in self.accesses:
            if is_same_token(given, access.token):
                text, policy = opening_page(access.csrf, kept_query(request))
                response = page_response(text, policy)
                secure = self.tls or (self.behind_proxy and not is_loopback(host_of(request)))
                session = access.session(request)
                response.set_cookie(access.cookie, session, httponly=True, samesite="Strict", secure=secure, path="/")
                return response
        return ask_for_token(WRONG if given else AGAIN, kept_query(request))


def host_of(request: web.Request) -> str:
    """Return the name by which an allowed request reached this server."""
    return urlsplit(f"//{request.host}").hostname or ""


def kept_query(request: web.Request) -> dict[str, str]:
    """Return the parameters of an address that signing in leaves as they are."""
    return {name: request.query[name] for name in KEPT if request.query.get(name)}


def ask_for_token(reason: str, kept: Mapping[str, str]) -> web.StreamResponse:
    """Return the page that asks for the token, with status 401."""
    return refuse(page_response(sign_in_page(reason, kept), POLICY, status=401))


def page_response(text: str, policy: str, status: int = 200) -> web.Response:
    """Return a page of its own, with its content security policy."""
    response = web.Response(status=status, text=text, content_type="text/html")
    add_headers(response)
    response.headers["Content-Security-Policy"] = policy
    return response


def refuse(response: web.Response) -> web.StreamResponse:
    """Return a refusal whose connection is closed after it."""
    response.force_close()
    return add_headers(response)


def add_headers(response: web.StreamResponse) -> web.StreamResponse:
    """Add the security headers that a response does not have yet, unless it has begun (a WebSocket's)."""
    if not response.prepared:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
    return response
