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
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import structlog

from dart_streams.background import cancel_tasks
from dart_streams.errors import ConfigError, ServiceUnavailable
from dart_streams.telemetry.process_health import ProcessHealth

PORT = "DART_HEALTH_PORT"
IN_POD = "KUBERNETES_SERVICE_HOST"
"""A variable that every pod has."""
MAX_PROBES, HEAD_BYTES, HEAD_S = 16, 8192, 10.0
"""Connections at a time, of which a further one ends the oldest, and bounds of a request's head."""

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
    thread = threading.Thread(target=run_to_the_end, args=[loop, serving], name="probes", daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    log.info("answering probes", port=port, bound_s=health.bound_s)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


def run_to_the_end(loop: asyncio.AbstractEventLoop, serving: Coroutine[Any, Any, None]) -> None:
    """Run the server in this thread, and end its connections after it."""
    with contextlib.closing(loop):
        loop.run_until_complete(serving)
        loop.run_until_complete(cancel_tasks(*asyncio.all_tasks(loop)))


async def serve_until(ended: asyncio.Event, listener: socket.socket, health: ProcessHealth) -> None:
    """Answer each endpoint with the reason why not, or with ``ok``; without aiohttp, which not each process has."""
    answers = {"/livez": health.find_hang, "/readyz": health.find_lack}
    open_writers: dict[asyncio.StreamWriter, None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers[writer] = None
        if len(open_writers) > MAX_PROBES:
            next(iter(open_writers)).transport.abort()
        try:
            async with asyncio.timeout(HEAD_S):
                words = (await reader.readuntil(b"\r\n\r\n")).split()
            find = answers.get(words[1].decode("latin-1") if len(words) > 1 else "")
            reason = f"no such endpoint: there are {', '.join(answers)}" if find is None else find()
            status = "404 Not Found" if find is None else "503 Service Unavailable" if reason else "200 OK"
            body = f"{reason or 'ok'}\n".encode()
            kind = f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}"
            writer.write(f"HTTP/1.1 {status}\r\n{kind}\r\nConnection: close\r\n\r\n".encode() + body)
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # It sent no request in time.
        finally:
            del open_writers[writer]
            writer.close()

    async with await asyncio.start_server(answer, sock=listener, limit=HEAD_BYTES):
        await ended.wait()
