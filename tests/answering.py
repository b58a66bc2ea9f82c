"""A server that answers every request by one handler."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from aiohttp.test_utils import TestServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def answering(handler: Handler, host: str = "127.0.0.1", port: int | None = None) -> AsyncIterator[str]:
    """Yield the URL of the server."""
    application = web.Application(client_max_size=2**24)
    application.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(application, host=host, port=port) as server:
        yield str(server.make_url("")).rstrip("/")
