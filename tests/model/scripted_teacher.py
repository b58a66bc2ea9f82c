"""A teacher on loopback with vLLM's answers, whose log-probabilities follow from the token ids. In a thread."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Scores the tokens of a prompt."""

    def do_POST(self) -> None:
        """Answer a request for scores."""
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
def scripted_teacher() -> Iterator[str]:
    """Yield the teacher's base URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
