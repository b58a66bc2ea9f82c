"""Bounds on a server's connections: their number, and the time for the head of a request.

aiohttp has neither: connections with half a request would hold all descriptors of the process.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

MAX_CONNECTIONS = 256
"""A browser opens six to a server, and one for each live page."""
HEAD_TIMEOUT_S = 10.0
KEEPALIVE_S = 75.0
"""Life of an idle connection, longer than a browser's."""
MAX_REASON = 200
"""Logged characters of a malformed request's error."""


class ConnectionBounds:
    """The connections of a server; ``strangers`` have sent no request of a known sender yet, the oldest first.

    A timer ends those that have sent no request at all. At the limit a new connection takes the place of the oldest
    stranger, whatever that one has asked.
    """

    def __init__(self, most: int, head_s: float) -> None:
        self.most = most
        self.head_s = head_s
        self.open: set[BoundedHandler] = set()
        self.strangers: dict[BoundedHandler, asyncio.TimerHandle] = {}

    def enter(self, handler: "BoundedHandler") -> bool:
        """Count a connection, cutting the oldest stranger for it; return False at the limit."""
        if len(self.open) >= self.most and self.strangers:
            next(iter(self.strangers)).cut()
        if len(self.open) >= self.most:
            return False
        self.open.add(handler)
        self.strangers[handler] = asyncio.get_running_loop().call_later(self.head_s, handler.cut)
        return True

    def has_asked(self, handler: "BoundedHandler") -> None:
        """Note the head of a connection's first request."""
        if handler in self.strangers:
            self.strangers[handler].cancel()

    def note_known(self, handler: "BoundedHandler") -> None:
        """Keep a connection, as its sender is known."""
        self.has_asked(handler)
        self.strangers.pop(handler, None)

    def leave(self, handler: "BoundedHandler") -> None:
        """Forget a connection."""
        self.note_known(handler)
        self.open.discard(handler)


class BoundedHandler(web.RequestHandler):
    """aiohttp's protocol of a connection, within bounds."""

    def __init__(self, server: web.Server, bounds: ConnectionBounds) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, keepalive_timeout=KEEPALIVE_S, access_log=None)  # type: ignore[arg-type]
        self.bounds = bounds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve a connection, or cut it if there are too many."""
        super().connection_made(transport)
        if not self.bounds.enter(self):
            self.cut()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self.bounds.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass data on; the first whole head ends the wait for it."""
        super().data_received(data)
        if self._request_count:
            self.bounds.has_asked(self)

    def cut(self) -> None:
        """End the connection at once."""
        self.bounds.leave(self)
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an internal error with its traceback, and a malformed request as a line."""
        if isinstance(error := kw.get("exc_info"), HttpProcessingError):
            reason = " ".join(str(error.message).split())[:MAX_REASON]
            self.logger.warning("malformed request: %s", reason)
        else:
            super().log_exception(*args, **kw)


def note_known(request: web.Request) -> None:
    """Keep the connection of a request whose sender has shown a token or a cookie."""
    if isinstance(handler := request.protocol, BoundedHandler):
        handler.bounds.note_known(handler)


@contextlib.asynccontextmanager
async def serve_bounded(
    application: web.Application,
    listener: socket.socket,
    tls: ssl.SSLContext | None = None,
    *,
    most: int = MAX_CONNECTIONS,
    head_s: float = HEAD_TIMEOUT_S,
    handler_cancellation: bool = False,
) -> AsyncIterator[ConnectionBounds]:
    """Serve an application on a listening socket while the body lasts."""
    runner = web.AppRunner(application, handler_cancellation=handler_cancellation, shutdown_timeout=1.0)
    await runner.setup()
    server, bounds = runner.server, ConnectionBounds(most, head_s)
    assert server is not None
    settings: dict[str, Any] = {"ssl": tls, "ssl_handshake_timeout": head_s} if tls is not None else {}
    loop = asyncio.get_running_loop()
    try:
        listening = await loop.create_server(lambda: BoundedHandler(server, bounds), sock=listener, **settings)
        try:
            yield bounds
        finally:
            listening.close()
    finally:
        await runner.cleanup()
