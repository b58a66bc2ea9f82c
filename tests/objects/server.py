"""A real S3 server on loopback: versitygw, whose objects are files below a folder and outlive it."""

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from dart_streams.console.launch.services.daemon import free_port

PROGRAM = Path(__file__).parents[2] / ".dart" / "s3-test" / "versitygw"
BUCKET = "dart"
KEY, SECRET = "test-key", "test-secret"
START_S = 120.0


class ObjectServer:
    """The server, of one port and folder through any number of starts; its bucket is there before the first."""

    def __init__(self, folder: Path) -> None:
        self.objects = folder / "objects"
        self.log = folder / "versitygw.log"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        (self.objects / BUCKET).mkdir(parents=True)

    @property
    def environment(self) -> dict[str, str]:
        """Return what a client's environment needs."""
        url = f"http://127.0.0.1:{self.port}"
        return {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        environment = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        command = [str(PROGRAM), "--port", f"127.0.0.1:{self.port}", "posix", str(self.objects)]
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
def running(folder: Path) -> Iterator[ObjectServer]:
    """Run a server for the body."""
    server = ObjectServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
