"""A teacher on loopback with vLLM's answers, whose log-probabilities follow from the token ids. In a thread."""

import contextlib
import itertools
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ScriptedTeacher(ThreadingHTTPServer):
    """Answers ``most`` requests, and holds all further ones until its end."""

    most = sys.maxsize

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = itertools.count(1)
        self.over = threading.Event()
        self.held = threading.Event()

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    """Scores the tokens of a prompt."""

    server: ScriptedTeacher

    def do_POST(self) -> None:
        """Answer a request for scores."""
        if next(self.server.requests) > self.server.most:
            self.server.held.set()
            self.server.over.wait()
            return
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scores = [{str(token): {"logprob": -(token % 7 + 1) / 3}} for token in asked["token_ids"][1:]]
        body = json.dumps({"prompt_logprobs": [None, *scores]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def scripted_teacher() -> Iterator[ScriptedTeacher]:
    """Yield a teacher that answers until the end of the block."""
    with ScriptedTeacher() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()
