"""Server of recorded web pages in a sandbox, for its browser: HTTP and HTTPS at one port of loopback.

It is a program of its own: ``python -m … FOLDER`` reads the pages and the certificate, listens, and goes on behind.
"""

import base64
import json
import os
import socket
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PORT = 44380
PAGES, CERTIFICATE = "pages.json", "certificate.pem"
"""Files of the folder: a list of responses with their URLs, and a certificate with its key."""
TLS_HANDSHAKE = b"\x16"
REQUEST_S = 30.0
MISSING = b"<!doctype html><title>Not recorded</title><h1>This page was not recorded</h1>"


class PageTable:
    """Recorded responses by URL."""

    def __init__(self, responses: "list[dict[str, Any]]") -> None:
        self._by_url: dict[str, dict[str, Any]] = {}
        self._by_path: dict[str, dict[str, Any]] = {}
        for response in responses:
            url = response["url"]
            self._by_url.setdefault(url, response)
            self._by_path.setdefault(url.partition("?")[0], response)

    def find(self, url: str) -> "dict[str, Any] | None":
        """Return the response for a URL, else for its path whatever the query, None without one."""
        return self._by_url.get(url) or self._by_path.get(url.partition("?")[0])


class RecordedSiteRequest(BaseHTTPRequestHandler):
    """Answers a request by a recorded response, or by status 404."""

    server: "RecordedSite"
    timeout = REQUEST_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with the recorded response."""
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        scheme = "https" if isinstance(self.connection, ssl.SSLSocket) else "http"
        host = self.headers.get("Host", "").partition(":")[0].lower()
        found = self.server.pages.find(f"{scheme}://{host}{self.path}")
        found = found or {"status": 404, "headers": [["Content-Type", "text/html"]], "body": ""}
        body = base64.b64decode(found["body"]) or (MISSING if found["status"] == 404 else b"")
        self.send_response(found["status"])
        for name, value in found["headers"]:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class RecordedSite(ThreadingHTTPServer):
    """Serves pages; a connection that begins with a TLS handshake is one of HTTPS."""

    daemon_threads = True

    def __init__(self, pages: PageTable, certificate: Path, port: int = PORT) -> None:
        super().__init__(("127.0.0.1", port), RecordedSiteRequest)
        self.pages = pages
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in its own thread."""
        assert isinstance(request, socket.socket)
        request.settimeout(REQUEST_S)
        try:
            if request.recv(1, socket.MSG_PEEK) == TLS_HANDSHAKE:
                request = self.tls.wrap_socket(request, server_side=True)
            super().finish_request(request, client_address)
        except OSError:
            pass  # The browser has closed the connection, or opened it for later use.
        finally:
            request.close()

    def handle_error(self, *_: Any) -> None:
        """Drop the connection."""


def main(folder: Path) -> None:
    """Listen, and serve in a process that outlives this one."""
    responses = json.loads((folder / PAGES).read_bytes())
    server = RecordedSite(PageTable(responses), folder / CERTIFICATE)
    if os.fork():
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
