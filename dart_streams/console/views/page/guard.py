"""Who may ask the page's server for anything: one check for every route, the WebSocket's included.

Everything is an allow-list: addresses, origins, methods. A browser is not trusted to stay on this page: DNS rebinding
brings another site's scripts to this address, so the host that they asked for must be one of ours.
"""

import hmac
import secrets
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from dart_streams.config.connections import is_loopback
from dart_streams.connection.auth import is_same_token

METHODS = frozenset({"GET", "HEAD"})
SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site: this page itself, or the person at the address bar."""
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


class Guard:
    """The check. ``token`` opens the page, and is exchanged for a cookie that follows from it and does not tell it."""

    def __init__(self, hosts: frozenset[str], port: int, *, tls: bool, token: str = "") -> None:
        self.hosts = hosts
        self.tls = tls
        self.token = token or secrets.token_urlsafe(24)
        self.session = hmac.digest(self.token.encode(), b"session", "sha256").hex()
        # Cookies are shared between the ports of a host, so the name has the port.
        self.cookie = f"dart_streams_{port}"

    def middleware(self) -> Middleware:
        """Return the check as aiohttp's middleware."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            if (refused := self.refusal(request)) is not None:
                return last(refused)
            if (given := request.query.get("token")) is not None and request.path == "/":
                return hardened(self.exchange(given))
            if not self.knows(request):
                text = "open the address that dart-streams printed: it has the token, which is new at each start"
                return last(web.Response(status=401, text=text))
            try:
                return hardened(await handler(request))
            except web.HTTPException as error:
                return hardened(web.Response(status=error.status, text=error.text))

        return check

    def refusal(self, request: web.Request) -> web.Response | None:
        """Return the answer to a request that is none of a person's at this page; None for the others."""
        if request.method not in METHODS:
            return web.Response(status=405, text="this page only reads: GET and HEAD", headers={"Allow": "GET, HEAD"})
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or not self.allows(hosts[0]):
            return web.Response(status=421, text=REFUSED_ADDRESS)
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"{'https' if self.tls else 'http'}://{hosts[0]}":
            return web.Response(status=403, text="a page of another origin may not ask here")
        if request.headers.get("Upgrade") is not None and origin is None and "Authorization" not in request.headers:
            return web.Response(status=403, text="a WebSocket needs its page's Origin")
        if request.headers.get("Sec-Fetch-Site", "none") not in SITES:
            return web.Response(status=403, text="a page of another site may not ask here")
        return None

    def allows(self, host: str) -> bool:
        """Say whether a Host header names this server; its port does not matter."""
        try:
            parts = urlsplit(f"//{host}")
            name = parts.hostname or ""
            _ = parts.port
        except ValueError:
            return False
        return parts.username is None and parts.path == "" and (is_loopback(name) or name in self.hosts)

    def knows(self, request: web.Request) -> bool:
        """Say whether a request has the cookie, or (a script's) the token as its bearer."""
        cookie = request.cookies.get(self.cookie, "")
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return is_same_token(cookie, self.session) or is_same_token(bearer, self.token)

    def exchange(self, given: str) -> web.Response:
        """Return the answer to a token in the address: the cookie, and an address without it."""
        if not is_same_token(given, self.token):
            return web.Response(
                status=401, text="this token is not that of the present start: see the address it printed"
            )
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(self.cookie, self.session, httponly=True, samesite="Strict", secure=self.tls, path="/")
        return response


def last(response: web.Response) -> web.StreamResponse:
    """Return the answer to who may not ask, whose connection is not kept."""
    response.force_close()
    return hardened(response)


def hardened(response: web.StreamResponse) -> web.StreamResponse:
    """Add the headers that bind the browser, unless the response has begun (a WebSocket's)."""
    if not response.prepared:
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
    return response
