"""Faults of the evaluators' requests, which go to the task's machine only, and have a time-out."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests

from dart_desktops.osworld.evaluator import faults

REQUEST_S = 60.0
"""Default time-out of a request; a command on the machine may take this long."""
REFUSED = frozenset({401, 403, 410, 502, 503})
"""Statuses that indicate a fault, not a state of the task."""


def guard(address: str, ports: Sequence[int], host: str, token: str) -> None:
    """Tell the requests of this process that are faults: callers would take them for a missing file, and score 0.

    These are requests to another address, which name spaces do not let through, and those that the machine's server,
    at the first port, does not answer. Ports of applications may be closed, as the policy may have closed them. The
    server gets its ``host`` and ``token``.
    """
    send: Callable[..., requests.Response] = requests.Session.request

    def request(session: requests.Session, method: str, url: str, **options: Any) -> requests.Response:
        parts = urlsplit(url)
        if parts.hostname != address or parts.port not in ports:
            faults.recorded.append(f"the evaluator wants {url}: only what is in the mirror can be used")
            raise requests.ConnectionError(f"{url} is not asked")
        to_server = parts.port == ports[0]
        if not options.get("timeout"):
            options["timeout"] = REQUEST_S
        if to_server:
            own = {"Host": host, **({"Authorization": f"Bearer {token}"} if token else {})}
            options["headers"] = {**(options.get("headers") or {}), **own}
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
