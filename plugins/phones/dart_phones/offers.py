"""Functions that phones offer beside touches and keys, as AndroidWorld does."""

from typing import Any

from dart_streams.actions.offered import offer_call


def one_text(name: str, meaning: str) -> dict[str, Any]:
    """Return the JSON schema of arguments that are one text."""
    properties = {name: {"type": "string", "description": meaning}}
    return {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}


OFFERED = (
    offer_call("open_app", "Open an app by its name.", one_text("app_name", "the name under the app's icon")),
    offer_call("set_text", "Replace the text of the focused field.", one_text("text", "the new text")),
)
