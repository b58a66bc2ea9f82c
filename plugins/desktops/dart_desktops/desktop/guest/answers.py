"""Arguments of requests of OSWorld's HTTP API, and error responses."""

import json
from typing import Any

from aiohttp import web


class Refusal(Exception):
    """A response with an error status; ``body`` is JSON or a text."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(str(body))
        self.status, self.body = status, body

    def answer(self) -> web.Response:
        """Return the response."""
        if isinstance(self.body, str):
            return web.Response(text=self.body, status=self.status)
        return web.json_response(self.body, status=self.status)


def error_body(error: BaseException) -> "dict[str, str]":
    """Return the response body for an error."""
    return {"status": "error", "message": str(error) or type(error).__name__}


async def read_json(request: web.Request) -> "dict[str, Any]":
    """Return the JSON object of a request; raise Refusal if there is none."""
    if not request.content_type.endswith("json"):
        raise Refusal(415, {"error": "the request must be JSON, and say so"})
    try:
        body = await request.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise Refusal(400, {"error": "the request is not JSON"}) from None
    if not isinstance(body, dict):
        raise Refusal(400, {"error": "the request must be an object"})
    return body


def positive_number(body: "dict[str, Any]", name: str, default: float) -> float:
    """Return a positive number of a request, or the default; raise Refusal for any other value."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise Refusal(400, {"error": f"{name} must be a number above 0"})
    return float(value)
