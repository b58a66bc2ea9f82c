"""Endpoints of a process's probes, on the port that ``DART_HEALTH_PORT`` names; none without it.

=========  =======================================================================================================
``/livez``   200 while the main loop turns within its bound, else 503
``/readyz``  200 once the process can do its work, else 503
=========  =======================================================================================================

The body says why. A thread answers, so a hung event loop gets its reason as well. The variable belongs to a container,
not to the configuration, which processes of one machine share. The port is on loopback, but in a pod of Kubernetes on
all addresses, because the node asks there.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping

import structlog
from aiohttp import web

from dart_streams.errors import ConfigError, ServiceUnavailable
from dart_streams.http_bounds import serve_bounded
from dart_streams.telemetry.process_health import ProcessHealth

PORT = "DART_HEALTH_PORT"
IN_POD = "KUBERNETES_SERVICE_HOST"
"""A variable that every pod has."""
MAX_PROBES = 16
"""Connections at a time: a probe's ends with its answer."""

log = structlog.get_logger()


def health_port(environ: Mapping[str, str]) -> int | None:
    """Return the port of the endpoints, None for none; raise ConfigError for a value that is no port."""
    text = environ.get(PORT, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise ConfigError(f"{PORT} is {text!r}: give a port from 1 to 65535, 0 for any free one, or unset it")
    return int(text)


@contextlib.contextmanager
def answering_probes(health: ProcessHealth, environ: Mapping[str, str] = os.environ) -> Iterator[int | None]:
    """Answer probes meanwhile; yield the port, None without one.

    Raises ConfigError for an invalid port, and ServiceUnavailable for one that is taken.
    """
    port = health_port(environ)
    if port is None:
        yield None
        return
    try:
        listener = socket.create_server(("" if environ.get(IN_POD) else "127.0.0.1", port))
    except OSError as error:
        raise ServiceUnavailable(
            f"{PORT} {port} can't be listened on: {error.strerror}; give each process of a machine its own, or unset it"
        ) from None
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    serving = serve_until(ended, listener, health)
    thread = threading.Thread(target=loop.run_until_complete, args=[serving], name="probes", daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    log.info("answering probes", port=port, bound_s=health.bound_s)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


async def serve_until(ended: asyncio.Event, listener: socket.socket, health: ProcessHealth) -> None:
    """Answer each endpoint with the reason why not, or with ``ok``."""
    answers = {"/livez": health.find_hang, "/readyz": health.find_lack}

    async def answer(request: web.Request) -> web.Response:
        find = answers.get(request.path)
        reason = f"no such endpoint: there are {', '.join(answers)}" if find is None else find()
        response = web.Response(status=404 if find is None else 503 if reason else 200, text=f"{reason or 'ok'}\n")
        response.force_close()
        return response

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    async with serve_bounded(application, listener, most=MAX_PROBES):
        await ended.wait()
