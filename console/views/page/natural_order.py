"""Order of ids as people count: #2 before #10. Pure."""

import re

DIGITS = re.compile(r"(\d+)")


def natural_key(text: str) -> list[str | int]:
    """Return a key for sorting by which numbers in a text count as numbers."""
    return [int(part) if place % 2 else part for place, part in enumerate(DIGITS.split(text))]
