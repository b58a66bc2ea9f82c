"""HTTP session of S3's client with a bound for each request.

aiohttp bounds the wait for an answer only once a body is sent. A server that takes connections but no body would
block a write forever.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import ReadTimeoutError

SILENT_S = 20.0
"""Longest time without an answer, more than s3fs waits for one once a body is sent."""
SLOWEST_BYTES_S = 1_000_000
"""Bytes of a body that are sent in a second at least."""


class BoundedSession(AIOHTTPSession):
    """aiobotocore's session, whose requests fail as unanswered ones after :func:`longest_s`."""

    async def send(self, request: Any) -> Any:
        """Send a request and return its response; raise botocore's ReadTimeoutError at the bound."""
        try:
            async with asyncio.timeout(longest_s(request.headers)):
                return await super().send(request)
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error


def longest_s(headers: Mapping[str, Any]) -> float:
    """Return how long a request may take, by the size of its body."""
    size = headers.get("Content-Length") or headers.get("X-Amz-Decoded-Content-Length") or 0
    return SILENT_S + int(size) / SLOWEST_BYTES_S
