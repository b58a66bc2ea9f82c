"""A real S3 server on loopback: versitygw, whose objects are files below a folder and outlive it."""

import contextlib
import http.server
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from console.launch.services.daemon import free_port

PROGRAM = Path(__file__).parents[2] / ".dart" / "s3-test" / "versitygw"
BUCKET = "dart"
KEY, SECRET = "test-key", "test-secret"
START_S = 120.0


class ObjectServer:
    """The server, of one port and folder through any number of starts; its bucket is there before the first."""

    def __init__(self, folder: Path) -> None:
        self.objects = folder / "objects"
        self.accounts = folder / "accounts"
        self.log = folder / "versitygw.log"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        (self.objects / BUCKET).mkdir(parents=True)
        self.accounts.mkdir()

    @property
    def url(self) -> str:
        """Return the address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return what a client's environment needs."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

    def add_account(self, name: str) -> dict[str, str]:
        """Make an account without rights; return its client's environment."""
        asks = ("--access", KEY, "--secret", SECRET, "--endpoint-url", self.url)
        made = ("--access", name, "--secret", f"{name}-secret", "--role", "user")
        subprocess.run([str(PROGRAM), "admin", *asks, "create-user", *made], check=True, capture_output=True)
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": name, "AWS_SECRET_ACCESS_KEY": f"{name}-secret"}

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        environment = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        options = ["--port", f"127.0.0.1:{self.port}", "--iam-dir", str(self.accounts)]
        command = [str(PROGRAM), *options, "posix", str(self.objects)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        deadline, pause = time.monotonic() + START_S, threading.Event()
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            pause.wait(0.05)

    def answers(self) -> bool:
        """Return whether it takes a connection."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False

    def received(self) -> int:
        """Return the bytes that it has read from connections and files since its start."""
        assert self.process is not None, "it was started"
        return int(psutil.Process(self.process.pid).io_counters().read_chars)

    def kill(self) -> None:
        """Kill it as ``kill -9`` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Have it take connections and answer none of them during the body."""
        assert self.process is not None, "it was started"
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def replaced_by_refusals(self) -> Iterator[list[str]]:
        """Kill it, and answer 503 at its port during the body; yield the requests."""
        self.kill()
        requests = list[str]()
        with Refusals(("127.0.0.1", self.port), requests) as refusals:
            thread = threading.Thread(target=refusals.serve_forever)
            thread.start()
            try:
                yield requests
            finally:
                refusals.shutdown()
                thread.join()
        self.start()


class Refusals(http.server.ThreadingHTTPServer):
    """Answers 503 to every request, and notes it."""

    def __init__(self, place: tuple[str, int], requests: list[str]) -> None:
        self.requests = requests
        super().__init__(place, Refusal)


class Refusal(http.server.BaseHTTPRequestHandler):
    """A request that is answered with 503."""

    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        """Read the request and its body, and answer."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        if self.headers.get("Expect", "").lower() != "100-continue":
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
        assert isinstance(self.server, Refusals)
        self.server.requests.append(self.requestline)
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ObjectServer]:
    """Run a server for the body."""
    server = ObjectServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
