"""Endpoints of a process's probes, on the port that ``DART_HEALTH_PORT`` names; none without it.

=========  =======================================================================================================
``/livez``   200 while the main loop turns within its bound, else 503
``/readyz``  200 once the process can do its work, else 503
=========  =======================================================================================================

The body says why. A thread answers, so a hung event loop gets its reason as well. The variable belongs to a container,
not to the configuration, which processes of one machine share.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import structlog

from dart_streams.errors import ConfigError, ServiceUnavailable
from dart_streams.telemetry.process_health import ProcessHealth

PORT = "DART_HEALTH_PORT"
REQUEST_TIMEOUT_S = 5.0

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
        server = ProbeServer(("", port), health)
    except OSError as error:
        raise ServiceUnavailable(
            f"{PORT} {port} can't be listened on: {error.strerror}; give each process of a machine its own, or unset it"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="probes", daemon=True)
    thread.start()
    log.info("answering probes", port=server.server_port, bound_s=health.bound_s)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class ProbeServer(ThreadingHTTPServer):
    """The server of a process's health."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], health: ProcessHealth) -> None:
        super().__init__(address, ProbeHandler)
        self.answers: dict[str, Callable[[], str]] = {"/livez": health.find_hang, "/readyz": health.find_lack}


class ProbeHandler(BaseHTTPRequestHandler):
    """Answers a GET of one of the endpoints."""

    timeout = REQUEST_TIMEOUT_S
    server: ProbeServer

    def do_GET(self) -> None:
        """Answer with the reason, or with ``ok``."""
        answer = self.server.answers.get(self.path)
        reason = f"no such endpoint: there are {', '.join(self.server.answers)}" if answer is None else answer()
        body = (reason or "ok").encode() + b"\n"
        self.send_response(404 if answer is None else 503 if reason else 200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds."""
