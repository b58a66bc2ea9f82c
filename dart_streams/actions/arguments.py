"""Arguments of a called function: a JSON object, and its canonical text. Pure."""

import json
from typing import Any, NoReturn


class InvalidArguments(ValueError):
    """Not a JSON object that a record can contain."""


def read_arguments(text: str) -> dict[str, Any]:
    """Parse a JSON object; texts in it may have unescaped line breaks. Raises InvalidArguments."""
    try:
        return check_arguments(json.loads(text, strict=False, parse_constant=refuse_constant))
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"not a JSON object ({error}): {text[:80]!r}") from None


def check_arguments(value: object) -> dict[str, Any]:
    """Return a JSON object; raise InvalidArguments for anything else, infinite numbers and halves of characters."""
    if not isinstance(value, dict):
        raise InvalidArguments(f"not a JSON object: {str(value)[:80]!r}")
    try:
        write_arguments(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(str(error)) from None
    return value


def write_arguments(arguments: dict[str, Any]) -> str:
    """Return arguments as compact JSON; :func:`read_arguments` is its inverse."""
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def refuse_constant(name: str) -> NoReturn:
    """Refuse ``NaN`` and ``Infinity``, which are not JSON."""
    raise ValueError(f"{name} is no JSON value")
