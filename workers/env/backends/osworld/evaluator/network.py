"""Restriction of the evaluators' requests: only to the task's machine, and with a time-out."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests

from workers.env.backends.osworld.evaluator import faults

REQUEST_S = 60.0
"""Default time-out of a request; a command on the machine may take this long."""
REFUSED = frozenset({401, 403, 410, 502, 503})
"""Statuses that indicate a fault, not a state of the task."""


def guard(host: str, server_port: int, ports: set[int], token: str) -> None:
    """Restrict all sessions of this process to the machine, and send ``token`` to its server.

    A request elsewhere, or one that the server does not answer, is recorded as a fault: callers would take it for a
    missing file, and score 0. Ports of applications may be closed, as the policy may have closed the application.
    """
    send: Callable[..., requests.Response] = requests.Session.request

    def request(session: requests.Session, method: str, url: str, **options: Any) -> requests.Response:
        parts = urlsplit(url)
        if parts.hostname != host or parts.port not in ports:
            faults.recorded.append(f"the evaluator wants {url}: only what is in the mirror can be used")
            raise requests.ConnectionError(f"{url} is not asked")
        to_server = parts.port == server_port
        if not options.get("timeout"):
            options["timeout"] = REQUEST_S
        if to_server and token:
            options["headers"] = {**(options.get("headers") or {}), "Authorization": f"Bearer {token}"}
        try:
            response = send(session, method, url, **options)
        except requests.RequestException as error:
            if to_server:
                faults.recorded.append(f"{parts.path}: {type(error).__name__} of the machine")
            raise
        if to_server and response.status_code in REFUSED:
            faults.recorded.append(f"{parts.path}: the machine answers {response.status_code}")
        return response

    requests.Session.request = request  # type: ignore[method-assign,assignment]
